// A machine with another number of cores, and other control groups, than this one. Preloaded into a process and all that
// it starts: LUDUS_SHOWN_CORES are shown wherever a program counts them, and files below LUDUS_SHOWN_ROOT stand in the
// place of those that tell of control groups. Nothing is limited by it.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {
long shown_cores() {
  static const long cores = [] {
    const char *said = getenv("LUDUS_SHOWN_CORES");
    return said == nullptr ? 1 : atol(said);
  }();
  return cores;
}

int show_all(size_t size, cpu_set_t *set) {
  memset(set, 0, size);
  for (long core = 0; core < shown_cores() && core < static_cast<long>(size) * 8; ++core) CPU_SET_S(core, size, set);
  return 0;
}

bool tells_of_groups(const char *path) {
  return strncmp(path, "/sys/fs/cgroup/", 15) == 0 || strcmp(path, "/proc/self/cgroup") == 0;
}

int open_shown(const char *path, int flags, mode_t mode) {
  const char *root = getenv("LUDUS_SHOWN_ROOT");
  char shown[PATH_MAX];
  if (root != nullptr && tells_of_groups(path)) {
    snprintf(shown, sizeof shown, "%s%s", root, path);
    path = shown;
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
}  // namespace

extern "C" {
int open(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_shown(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_shown(path, flags, mode);
}

long sysconf(int name) {
  static const auto real = reinterpret_cast<long (*)(int)>(dlsym(RTLD_NEXT, "sysconf"));
  return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? shown_cores() : real(name);
}

int get_nprocs() { return static_cast<int>(shown_cores()); }
int get_nprocs_conf() { return static_cast<int>(shown_cores()); }
int sched_getaffinity(pid_t, size_t size, cpu_set_t *set) { return show_all(size, set); }
int pthread_getaffinity_np(pthread_t, size_t size, cpu_set_t *set) { return show_all(size, set); }
}
