// Tokens of a head as words for products. Every product is sums of (broadcast word) x (vector of 16 words), a word being
// one fp32 number or a pair of bf16 along the dimension summed over. Hence two packings of keys, values, queries and
// gradients:
//   along   [block][D / STEP][16]   word = numbers 2d and 2d+1 of one token     (sums over the head's width)
//   across  [token / STEP][D]       word = number d of tokens 2t and 2t+1       (sums over tokens)

#pragma once

#include <vector>

#include "forest.h"
#include "words.h"

namespace {

template <class M, typename T>
void pack_along(const T* tokens, int64_t stride, int count, int dim, typename M::Word* to) {
  for (int j = 0; j < dim / M::STEP; j++)
    for (int n = 0; n < BLOCK; n++) to[j * BLOCK + n] = n < count ? M::along(tokens + n * stride, j) : 0;
}

// `count` tokens; those that are missing to `padded` are zero.
template <class M, typename T>
void pack_across(const T* tokens, int64_t stride, int count, int padded, int dim, typename M::Word* to) {
  static const T zeros[256] = {};
  for (int t = 0; t < padded; t += M::STEP) {
    const T* first = t < count ? tokens + t * stride : zeros;
    const T* second = t + 1 < count ? tokens + (t + 1) * stride : zeros;
    for (int d = 0; d < dim; d++) to[(t / M::STEP) * dim + d] = M::across(first, second, d);
  }
}

// `count` tokens as rows of words; those that are missing to TILE are zero.
template <class M, typename T>
void pack_rows(const T* tokens, int64_t stride, int count, int dim, typename M::Word* to) {
  const int width = dim / M::STEP;
  for (int t = 0; t < TILE; t++)
    for (int j = 0; j < width; j++) to[t * width + j] = t < count ? M::along(tokens + t * stride, j) : 0;
}

// Keys or values of one head in both packings.
template <class M>
struct Packed {
  std::vector<typename M::Word> along, across;
};

}  // namespace
