// Threads for the kernels of a process, where the compiler brings no OpenMP. See parallel.h.
//
// Plain C interface. Whoever calls works along and does what no thread has begun, so that it waits for nothing but
// work that is being done: several may call at once, and where no thread can be started all is done by the caller. A
// thread without work sleeps. They are never ended: a process takes them along. A process that was forked off begins
// with none.

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace {

typedef void (*Work)(const void* body, int32_t worker);

// What one caller asked for; it lies on the caller's stack.
struct Job {
  Work work;
  const void* body;
  int32_t num_workers, num_begun = 0, num_ended = 0;
  std::condition_variable all_ended;
};

class Pool {
 public:
  void share(int32_t num_workers, Work work, const void* body) {
    Job job{work, body, num_workers};
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.push_back(&job);
    start_threads(num_workers - 1);
    for (int32_t i = 1; i < num_workers; i++) has_jobs_.notify_one();
    while (job.num_begun < num_workers) do_one(job, lock);
    job.all_ended.wait(lock, [&] { return job.num_ended == num_workers; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_jobs_;
  std::vector<Job*> jobs_;  // those with workers that nobody has begun, the longest there first
  int32_t num_threads_ = 0;

  // At least `num` in all, if the system allows as many.
  void start_threads(int32_t num) {
    try {
      for (; num_threads_ < num; num_threads_++) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      has_jobs_.wait(lock, [&] { return !jobs_.empty(); });
      do_one(*jobs_.front(), lock);
    }
  }

  // Of a job with workers that nobody has begun. Afterwards the job may be gone.
  void do_one(Job& job, std::unique_lock<std::mutex>& lock) {
    const int32_t worker = job.num_begun++;
    if (job.num_begun == job.num_workers) jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
    lock.unlock();
    job.work(job.body, worker);
    lock.lock();
    if (++job.num_ended == job.num_workers) job.all_ended.notify_one();
  }
};

// Never destroyed: its threads may run until the very end of the process.
alignas(Pool) char place[sizeof(Pool)];

// In a process that was forked off its threads are not there, and its mutex may have been another's.
void begin() { new (place) Pool; }

const bool has_begun = [] {
  begin();
  return pthread_atfork(nullptr, nullptr, begin) == 0;
}();

}  // namespace

extern "C" {

// work(body, worker) for each worker in [0, num_workers); returns when all are done.
void ludus_share(int32_t num_workers, Work work, const void* body) {
  std::launder((Pool*)place)->share(num_workers, work, body);
}

}  // extern "C"
