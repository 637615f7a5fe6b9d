// Sixteen fp32 numbers at a time: in one of the compiler's own vectors where the processor's are as wide, else in parts.

#pragma once

#include "numbers.h"
#include "processor.h"

#ifndef LUDUS_AVX512
#include "lanes.h"
#endif

namespace {

constexpr int LANES = 16;

#ifdef LUDUS_AVX512
typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
typedef uint32_t UintVec __attribute__((vector_size(64)));
typedef uint16_t HalfVec __attribute__((vector_size(32)));
typedef float LooseVec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t LooseIntVec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t LooseHalfVec __attribute__((vector_size(32), aligned(2), may_alias));

constexpr IntVec LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

inline Vec load_vec(const void* at) { return *(const LooseVec*)at; }
inline IntVec load_ints(const int32_t* at) { return *(const LooseIntVec*)at; }
inline void store_vec(void* at, Vec x) { *(LooseVec*)at = x; }
inline Vec fill(float x) { return Vec{} + x; }
inline Vec select(IntVec mask, Vec a, Vec b) { return mask ? a : b; }
inline Vec as_float(UintVec x) { return (Vec)x; }
inline Vec as_float(IntVec x) { return (Vec)x; }
inline UintVec as_uint(Vec x) { return (UintVec)x; }
inline UintVec as_uint(IntVec x) { return (UintVec)x; }
inline IntVec to_int(Vec x) { return __builtin_convertvector(x, IntVec); }
inline UintVec load_halves(const uint16_t* at) { return __builtin_convertvector(*(const LooseHalfVec*)at, UintVec); }
inline void store_halves(uint16_t* at, UintVec x) { *(LooseHalfVec*)at = __builtin_convertvector(x, HalfVec); }
#else
inline IntVec load_ints(const int32_t* at) { return load_wide<IntVec>(at); }
constexpr int32_t LANE_NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const IntVec LANE = load_ints(LANE_NUMBERS);

inline Vec load_vec(const void* at) { return load_wide<Vec>(at); }
inline void store_vec(void* at, Vec x) { store_wide(at, x); }
inline Vec fill(float x) { return spread<Vec>(x); }
#endif

inline Vec larger(Vec a, Vec b) { return select(a > b, a, b); }

// Below `low` it is `low`, above `high` it is `high`; a NaN stays one.
inline Vec clamped(Vec x, float low, float high) {
#ifdef LUDUS_AVX512
  return (Vec)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)x));
#else
  const Vec raised = select(x < low, fill(low), x);
  return select(raised > high, fill(high), raised);
#endif
}

// The first `count` lanes of x, `otherwise` in the rest.
inline Vec only_first(Vec x, int64_t count, float otherwise) {
  return count >= LANES ? x : select(LANE < int32_t(count), x, fill(otherwise));
}

// Halves meet until one number is left, in the same order with and without instructions for it.
inline float sum_of(Vec x) {
#ifdef LUDUS_AVX512
  return _mm512_reduce_add_ps((__m512)x);
#else
  float lanes[LANES];
  std::memcpy(lanes, &x, sizeof lanes);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

inline float max_of(Vec x) {
#ifdef LUDUS_AVX512
  return _mm512_reduce_max_ps((__m512)x);
#else
  float top = x[0];
  for (int i = 1; i < LANES; i++) top = x[i] > top ? x[i] : top;
  return top;
#endif
}

#ifdef LUDUS_AVX512
inline Vec from_bf16(HalfVec values) { return (Vec)(__builtin_convertvector(values, UintVec) << 16); }
#endif

// The high halves of the nearest numbers that bf16 has; a NaN stays one.
inline UintVec nearest_bf16(Vec values) {
  const UintVec bits = as_uint(values);
  const UintVec nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const UintVec is_nan = as_uint((bits & 0x7fffffffu) > 0x7f800000u);
  return (nearest & ~is_nan) | (((bits >> 16) | 0x40u) & is_nan);
}

// Bits that look like chance, of every index its own. Source: Wellons' "lowbias32", https://github.com/skeeto/hash-prospector
inline UintVec mix(UintVec x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Adding 16 bits of chance below what bf16 keeps carries over with the probability of what is cut off.
// What is not finite stays as it is.
inline void save_by_chance(uint16_t* at, Vec x, UintVec chance) {
  const UintVec own = as_uint(x);
  const UintVec is_finite = as_uint((own & 0x7f800000u) != 0x7f800000u);
  store_halves(at, (own + (chance & 0xffffu & is_finite)) >> 16);
}

// Sixteen numbers of either type as fp32.
inline Vec read(const float* at) { return load_vec(at); }
inline Vec read(const uint16_t* at) { return as_float(load_halves(at) << 16); }

inline void save(float* at, Vec x) { store_vec(at, x); }

#ifdef LUDUS_PAIRS
inline HalfVec to_bf16(Vec values) { return (HalfVec)_mm512_cvtneps_pbh((__m512)values); }
inline void save(uint16_t* at, Vec x) { *(LooseHalfVec*)at = to_bf16(x); }
#else
inline void save(uint16_t* at, Vec x) { store_halves(at, nearest_bf16(x)); }
#endif

// As if saved in T and read again.
template <typename T>
inline Vec rounded(Vec values) {
  if (sizeof(T) == sizeof(float)) return values;
#ifdef LUDUS_PAIRS
  return from_bf16(to_bf16(values));
#else
  return as_float(nearest_bf16(values) << 16);
#endif
}

// `count` numbers, or sixteen if that is more; the rest zero.
template <typename T>
inline Vec read(const T* at, int64_t count) {
  if (count >= LANES) return read(at);
  T padded[LANES] = {};
  std::memcpy(padded, at, count * sizeof(T));
  return read(padded);
}

template <typename T>
inline void save(T* at, Vec values, int64_t count) {
  if (count >= LANES) return save(at, values);
  T padded[LANES];
  save(padded, values);
  std::memcpy(at, padded, count * sizeof(T));
}

}  // namespace
