// Products as sums of (broadcast word) x (vector of 16 words).
//
// A word is 32 bits along the dimension summed over: one fp32 number, or a pair of bf16 that one AVX512-BF16
// instruction multiplies and adds.

#pragma once

#include <type_traits>

#include "vectors.h"

namespace {

// A register tile: its sums hide the latency of the multiply-add and leave registers for what is multiplied.
#ifdef LUDUS_AVX512
constexpr int ROWS = 4, WIDE = 4;
#elif defined(LUDUS_AVX) || defined(__aarch64__)
constexpr int ROWS = 4, WIDE = 1;  // of two or four vectors each
#else
constexpr int ROWS = 2, WIDE = 1;
#endif

// One fp32 number a word; serves bf16 too where the processor cannot multiply pairs, or not quickly.
struct Plain {
  typedef float Word;
  static constexpr int STEP = 1;
  static Vec add_product(Vec sum, Vec vector, Word word) { return sum + vector * word; }
  template <typename T>
  static Word along(const T* token, int64_t step) { return load(token + step); }
  template <typename T>
  static Word across(const T* first, const T*, int64_t d) { return load(first + d); }
  // 16 numbers of one row, so that the row can be broadcast word by word
  static void put_row(Word* row, int64_t column, Vec x) { store_vec(row + column, x); }
  // 16 numbers of rows 2r and 2r+1, so that sums over rows can be taken
  static void put_rows(Word* rows, int64_t num_columns, int row, int64_t column, Vec x0, Vec x1) {
    store_vec(rows + row * num_columns + column, x0);
    store_vec(rows + (row + 1) * num_columns + column, x1);
  }
};

#ifdef LUDUS_PAIRS
struct Pairs {
  typedef uint32_t Word;
  static constexpr int STEP = 2;
  static Vec add_product(Vec sum, Vec vector, Word word) {
    return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)vector, (__m512bh)_mm512_set1_epi32(int(word)));
  }
  static Word along(const uint16_t* token, int64_t step) {
    Word word;
    std::memcpy(&word, token + 2 * step, 4);
    return word;
  }
  static Word across(const uint16_t* first, const uint16_t* second, int64_t d) {
    return Word(first[d]) | Word(second[d]) << 16;
  }
  static void put_row(Word* row, int64_t column, Vec x) {
    save((uint16_t*)(row + column / 2), x);
  }
  static void put_rows(Word* rows, int64_t num_columns, int row, int64_t column, Vec x0, Vec x1) {
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)to_bf16(x0));
    const __m512i high = _mm512_cvtepu16_epi32((__m256i)to_bf16(x1));
    _mm512_storeu_si512(rows + (row / 2) * num_columns + column, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
};
#endif

// sum[r][n] += a(r, 0..steps) * b[n](0..steps)
template <class M, int N>
inline void add_products(Vec (&sum)[ROWS][N], const typename M::Word* a, int64_t a_row, int64_t a_step,
                         const typename M::Word* const* b, int64_t b_step, int steps) {
  for (int j = 0; j < steps; j++) {
    Vec column[N];
    for (int n = 0; n < N; n++) column[n] = load_vec(b[n] + j * b_step);
    for (int r = 0; r < ROWS; r++) {
      const typename M::Word word = a[r * a_row + j * a_step];
      for (int n = 0; n < N; n++) sum[r][n] = M::add_product(sum[r][n], column[n], word);
    }
  }
}

// Calls f<N>(start) for runs of WIDE vectors, then for what is left.
template <typename F>
inline void in_runs(int num_vectors, F f) {
  int at = 0;
  for (; at + WIDE <= num_vectors; at += WIDE) f(std::integral_constant<int, WIDE>(), at);
  if constexpr (WIDE > 1) {
    if (num_vectors - at == 3) f(std::integral_constant<int, 3>(), at);
    else if (num_vectors - at == 2) f(std::integral_constant<int, 2>(), at);
    else if (num_vectors - at == 1) f(std::integral_constant<int, 1>(), at);
  }
}

}  // namespace
