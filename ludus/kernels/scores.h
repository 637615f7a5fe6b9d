// How scores become weights: attention's rule, the same for pages and for trees.

#pragma once

#include "exponential.h"

namespace {

// Far below any score, and still finite: exp() of it is 0 and no infinity meets another.
constexpr float HIDDEN = -1e30f;

struct Rule {
  float scale;
  float softcap;       // 0: none
  int32_t window;      // 0: none
  const float* sinks;  // one for each query head, null: none

  // Score of a head that brings no value, and takes its share of the weights.
  float sink(int head) const { return sinks ? sinks[head] : HIDDEN; }
};

}  // namespace
