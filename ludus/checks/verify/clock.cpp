// A clock that jumps: what a process takes for the time of day is off by the seconds in a file that others write.
// Preloaded into every process of a run. The clocks that only run on, by which waits are timed, stay as they are.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {
volatile const long long *seconds_off = nullptr;

__attribute__((constructor)) void look() {
  const char *path = getenv("LUDUS_CHECK_CLOCK");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void *found = mmap(nullptr, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (found != MAP_FAILED) seconds_off = static_cast<volatile const long long *>(found);
}

long long off() { return seconds_off == nullptr ? 0 : *seconds_off; }
}  // namespace

extern "C" {
int clock_gettime(clockid_t id, struct timespec *now) {
  const long failed = syscall(SYS_clock_gettime, id, now);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += off();
  return static_cast<int>(failed);
}

int gettimeofday(struct timeval *__restrict now, void *__restrict) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into != nullptr) *into = now.tv_sec;
  return now.tv_sec;
}
}
