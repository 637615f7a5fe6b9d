// Work shared among threads: OpenMP's where the compiler has it, else those of threads.cpp.
//
// The parts are made by the kernels and by nothing else, and one piece of machine code does them, whichever thread
// comes: threads of either kind give the same bits.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace {

// Fewer values than this, each passed over once or twice, are done sooner than another thread has woken up.
constexpr int64_t MANY_VALUES = 1 << 15;

typedef void (*Work)(const void* body, int32_t worker);

// How many workers a piece of work deserves: one more for every `enough` of its size, at most one a thread.
struct Team {
  int num_threads, num_workers;
  Team(int threads, int64_t size, int64_t enough)
      : num_threads(threads),
        num_workers(int(std::max<int64_t>(1, std::min<int64_t>(threads, (size + enough - 1) / enough)))) {}
};

}  // namespace

#ifndef _OPENMP
namespace {

typedef void (*ShareWork)(int32_t num_workers, Work work, const void* body);
ShareWork share_with_threads = nullptr;  // null: there are none

}  // namespace

// Whoever loads this library hands over `ludus_share` of threads.cpp, so that all libraries share one set of threads.
extern "C" void ludus_use_threads(ShareWork share) { share_with_threads = share; }
#endif

namespace {

template <typename Body>
__attribute__((noinline)) void call_body(const void* body, int32_t worker) noexcept {
  (*(const Body*)body)(worker);
}

// body(worker) for each of the team's workers. None may wait for another: one thread may do several.
template <typename Body>
void on_workers(const Team& team, const Body& body) {
  const Work work = call_body<Body>;
  if (team.num_workers == 1) return work(&body, 0);
#ifdef _OPENMP
  // all threads are called, those without a worker too: GNU's OpenMP ends the ones that a smaller team has no use for
#pragma omp parallel for num_threads(team.num_threads) schedule(static, 1)
  for (int32_t worker = 0; worker < team.num_workers; worker++) work(&body, worker);
#else
  if (share_with_threads) return share_with_threads(team.num_workers, work, &body);
  for (int32_t worker = 0; worker < team.num_workers; worker++) work(&body, worker);
#endif
}

// body(i) for each i in [0, count), for tasks of equal size: every worker has a run of them.
template <typename Body>
void parallel_for(int64_t count, const Team& team, const Body& body) {
  on_workers(team, [&](int64_t worker) {
    const int64_t end = (worker + 1) * count / team.num_workers;
    for (int64_t i = worker * count / team.num_workers; i < end; i++) body(i);
  });
}

// body(i, scratch) for each i in [0, count), for tasks of any size: workers take `run` of them whenever they are free.
// Each worker has a scratch of its own, out of those that are given.
template <typename Scratch, typename Body>
void parallel_tasks(int64_t count, int64_t run, const Team& team, std::vector<Scratch>& scratches, const Body& body) {
  std::atomic<int64_t> next{0};
  if (int(scratches.size()) < team.num_workers) scratches.resize(team.num_workers);
  on_workers(team, [&](int32_t worker) {
    for (int64_t from; (from = next.fetch_add(run, std::memory_order_relaxed)) < count;)
      for (int64_t i = from; i < std::min(from + run, count); i++) body(i, scratches[worker]);
  });
}

// The same with scratches that are there for this once.
template <typename Scratch, typename Body>
void parallel_tasks(int64_t count, int64_t run, const Team& team, const Body& body) {
  std::vector<Scratch> scratches;
  parallel_tasks(count, run, team, scratches, body);
}

}  // namespace
