// One number in memory, fp32 or bf16, as fp32.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

// As the wrappers pass it on.
enum Dtype : int32_t { FP32 = 0, BF16 = 1 };

inline float from_bf16(uint16_t value) {
  const uint32_t bits = uint32_t(value) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

// To the nearest, halves to the even one.
inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);  // NaN stays NaN
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline float load(const float* at) { return *at; }
inline float load(const uint16_t* at) { return from_bf16(*at); }
inline void save(float* at, float value) { *at = value; }
inline void save(uint16_t* at, float value) { *at = to_bf16(value); }

}  // namespace
