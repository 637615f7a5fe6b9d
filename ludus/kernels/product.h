// What a product of linear.cpp reads and writes, whatever instructions compute it.

#pragma once

#include <cstdint>

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

// Below this number of products another thread costs more than it brings: waking it takes about a microsecond.
constexpr int64_t FEWEST_PRODUCTS = 1 << 17;

// One thread's columns: all threads get equally many units of them, and only the last unit of all is narrow.
struct Share {
  int64_t begin, end;
  Share(int64_t num_columns, int64_t unit, int part, int num_threads) {
    const int64_t num_units = (num_columns + unit - 1) / unit, last = (part + 1) * num_units / num_threads * unit;
    begin = part * num_units / num_threads * unit;
    end = last < num_columns ? last : num_columns;
  }
};

struct alignas(64) Line {
  char bytes[64];
};

}  // namespace
