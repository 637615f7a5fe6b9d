// What a product of linear.cpp reads and writes, whatever instructions compute it.

#pragma once

#include <cstdint>

#include "parallel.h"

namespace {

struct Problem {
  const void* x;
  int64_t x_stride;
  const void* weight;
  int64_t weight_stride;
  const void* bias;  // null: none
  void* out;
  int64_t out_stride;
  bool adds;  // to what `out` holds
  int64_t num_rows, num_columns, width;
};

// Of fewer products another thread brings less than it costs: waking it takes about a microsecond.
constexpr int64_t MANY_PRODUCTS = 1 << 17;

inline Team multipliers(const Problem& problem, int64_t num_rows, int num_threads) {
  return Team(num_threads, num_rows * problem.num_columns * problem.width, MANY_PRODUCTS);
}

// One worker's columns: all workers get equally many units of them, and only the last unit of all is narrow.
struct Share {
  int64_t begin, end;
  Share(int64_t num_columns, int64_t unit, int worker, int num_workers) {
    const int64_t num_units = (num_columns + unit - 1) / unit, last = (worker + 1) * num_units / num_workers * unit;
    begin = worker * num_units / num_workers * unit;
    end = last < num_columns ? last : num_columns;
  }
};

struct alignas(64) Line {
  char bytes[64];
};

}  // namespace
