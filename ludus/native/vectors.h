// Sixteen fp32 numbers at a time, in the compiler's own vectors: they become the processor's widest instructions.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define LUDUS_PAIRS 1  // one instruction multiplies pairs of bf16 and adds them to 16 sums
#include <immintrin.h>
#endif

namespace {

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
typedef uint16_t HalfVec __attribute__((vector_size(32)));
typedef float LooseVec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t LooseIntVec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t LooseHalfVec __attribute__((vector_size(32), aligned(2), may_alias));

inline Vec load_vec(const void* at) { return *(const LooseVec*)at; }
inline void store_vec(void* at, Vec x) { *(LooseVec*)at = x; }
inline Vec fill(float x) { return Vec{} + x; }
inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

inline float sum_of(Vec x) {
  float total = 0.f;
  for (int i = 0; i < 16; i++) total += x[i];
  return total;
}

inline float max_of(Vec x) {
  float top = x[0];
  for (int i = 1; i < 16; i++) top = x[i] > top ? x[i] : top;
  return top;
}

// exp(x) for x <= 87, relative error below 2e-7; below -87 it is 0. Source: Cephes expf (Moshier).
inline Vec exp_vec(Vec given) {
  const Vec x = larger(given, fill(-87.f));
  const float rounder = 12582912.f;  // 1.5 * 2^23: adding it leaves an integer in the lowest bits
  const Vec shifted = x * 1.44269504088896341f + rounder;
  const Vec n = shifted - rounder;
  const Vec f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = fill(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.f;
  const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
  return given < -87.f ? Vec{} : p * (Vec)power;
}

// tanh(x) = 1 - 2 / (exp(2x) + 1)
inline Vec tanh_vec(Vec x) {
  const Vec doubled = x + x, bounded = doubled > 80.f ? fill(80.f) : doubled;
  return 1.f - 2.f / (exp_vec(bounded) + 1.f);
}

inline float to_float(float value) { return value; }
inline float to_float(uint16_t value) {
  const uint32_t bits = uint32_t(value) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);  // NaN stays NaN
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// Sixteen numbers of either type as fp32.
inline Vec read(const float* at) { return load_vec(at); }
inline Vec read(const uint16_t* at) {
  const HalfVec bits = *(const LooseHalfVec*)at;
  return (Vec)(__builtin_convertvector(bits, IntVec) << 16);
}

inline void save(float* at, Vec x) { store_vec(at, x); }
inline void save(uint16_t* at, Vec x) {
#ifdef LUDUS_PAIRS
  _mm256_storeu_si256((__m256i*)at, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  for (int i = 0; i < 16; i++) at[i] = to_bf16(x[i]);
#endif
}

}  // namespace
