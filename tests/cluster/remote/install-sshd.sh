#!/bin/sh
# Debian's sshd, for tests that start one of their own. The system's is not started: nothing new listens.
set -eu
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod +x $policy
    trap 'rm -f $policy' EXIT
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server
# Where there is systemd, what is installed would start with the machine.
if [ -d /run/systemd/system ]; then systemctl disable --now ssh.service ssh.socket; fi
