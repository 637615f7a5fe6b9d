// Sixteen numbers in as many vectors as this processor needs for them, with the operators of one.
//
// For processors whose vectors are narrower than 64 bytes. Compilers do split a wider vector into those that there are,
// but its comparisons and selections into single numbers.

#pragma once

#include <type_traits>

#include "numbers.h"
#include "processor.h"

namespace {

#ifdef LUDUS_AVX
constexpr int PART = 8;  // numbers in one of the processor's vectors
#else
constexpr int PART = 4;
#endif

typedef float FloatPart __attribute__((vector_size(4 * PART)));
typedef int32_t IntPart __attribute__((vector_size(4 * PART)));
typedef uint32_t UintPart __attribute__((vector_size(4 * PART)));
typedef uint16_t HalfPart __attribute__((vector_size(2 * PART)));

template <typename N, typename P>
struct Wide {
  static constexpr int COUNT = 16 / PART;
  typedef N Number;
  P part[COUNT];
  N operator[](int i) const { return part[i / PART][i % PART]; }
};

typedef Wide<float, FloatPart> Vec;
typedef Wide<int32_t, IntPart> IntVec;
typedef Wide<uint32_t, UintPart> UintVec;

// f(index) for the index of each part, which is a constant: a loop would send the parts through memory.
template <typename F>
inline __attribute__((always_inline)) void each_part(F f) {
  f(std::integral_constant<int, 0>());
  f(std::integral_constant<int, 1>());
  if constexpr (16 / PART > 2) {
    f(std::integral_constant<int, 2>());
    f(std::integral_constant<int, 3>());
  }
}

// f of each part of all arguments.
template <typename R, typename F, typename... A>
inline __attribute__((always_inline)) R by_parts(F f, const A&... all) {
  R out;
  each_part([&](auto i) __attribute__((always_inline)) { out.part[i] = f(all.part[i]...); });
  return out;
}

// A number as sixteen of them.
template <typename W>
inline __attribute__((always_inline)) W spread(typename W::Number x) {
  W out;
  each_part([&](auto i) __attribute__((always_inline)) { out.part[i] = decltype(out.part[0] + out.part[0]){} + x; });
  return out;
}

#define LUDUS_OPERATOR(op)                                                                                  \
  template <typename N, typename P>                                                                         \
  inline __attribute__((always_inline)) Wide<N, P> operator op(const Wide<N, P>& a, const Wide<N, P>& b) {  \
    return by_parts<Wide<N, P>>([](P x, P y) __attribute__((always_inline)) { return P(x op y); }, a, b);   \
  }                                                                                                         \
  template <typename N, typename P>                                                                         \
  inline __attribute__((always_inline)) Wide<N, P> operator op(const Wide<N, P>& a,                         \
                                                               std::common_type_t<N> b) {                   \
    return a op spread<Wide<N, P>>(b);                                                                      \
  }                                                                                                         \
  template <typename N, typename P>                                                                         \
  inline __attribute__((always_inline)) Wide<N, P> operator op(std::common_type_t<N> a,                     \
                                                               const Wide<N, P>& b) {                       \
    return spread<Wide<N, P>>(a) op b;                                                                      \
  }                                                                                                         \
  template <typename N, typename P, typename B>                                                             \
  inline __attribute__((always_inline)) Wide<N, P>& operator op##=(Wide<N, P>& a, const B& b) {             \
    return a = a op b;                                                                                      \
  }
LUDUS_OPERATOR(+)
LUDUS_OPERATOR(-)
LUDUS_OPERATOR(*)
LUDUS_OPERATOR(/)
LUDUS_OPERATOR(&)
LUDUS_OPERATOR(|)
LUDUS_OPERATOR(^)
#undef LUDUS_OPERATOR

#define LUDUS_COMPARISON(op)                                                                                       \
  template <typename N, typename P>                                                                                \
  inline __attribute__((always_inline)) IntVec operator op(const Wide<N, P>& a, const Wide<N, P>& b) {             \
    return by_parts<IntVec>([](P x, P y) __attribute__((always_inline)) { return (IntPart)(x op y); }, a, b);      \
  }                                                                                                                \
  template <typename N, typename P>                                                                                \
  inline __attribute__((always_inline)) IntVec operator op(const Wide<N, P>& a, std::common_type_t<N> b) {         \
    return a op spread<Wide<N, P>>(b);                                                                             \
  }
LUDUS_COMPARISON(<)
LUDUS_COMPARISON(>)
LUDUS_COMPARISON(<=)
LUDUS_COMPARISON(>=)
LUDUS_COMPARISON(!=)
#undef LUDUS_COMPARISON

template <typename N, typename P>
inline __attribute__((always_inline)) Wide<N, P> operator-(const Wide<N, P>& a) {
  return by_parts<Wide<N, P>>([](P x) __attribute__((always_inline)) { return P(-x); }, a);
}
template <typename N, typename P>
inline __attribute__((always_inline)) Wide<N, P> operator~(const Wide<N, P>& a) {
  return by_parts<Wide<N, P>>([](P x) __attribute__((always_inline)) { return P(~x); }, a);
}
template <typename N, typename P>
inline __attribute__((always_inline)) Wide<N, P> operator<<(const Wide<N, P>& a, int by) {
  return by_parts<Wide<N, P>>([by](P x) __attribute__((always_inline)) { return P(x << by); }, a);
}
template <typename N, typename P>
inline __attribute__((always_inline)) Wide<N, P> operator>>(const Wide<N, P>& a, int by) {
  return by_parts<Wide<N, P>>([by](P x) __attribute__((always_inline)) { return P(x >> by); }, a);
}

// The same bits, or the same numbers, as another type.
inline Vec as_float(const UintVec& x) { return by_parts<Vec>([](UintPart p) { return (FloatPart)p; }, x); }
inline Vec as_float(const IntVec& x) { return by_parts<Vec>([](IntPart p) { return (FloatPart)p; }, x); }
inline UintVec as_uint(const Vec& x) { return by_parts<UintVec>([](FloatPart p) { return (UintPart)p; }, x); }
inline UintVec as_uint(const IntVec& x) { return by_parts<UintVec>([](IntPart p) { return (UintPart)p; }, x); }
inline IntVec to_int(const Vec& x) {
  return by_parts<IntVec>([](FloatPart p) { return __builtin_convertvector(p, IntPart); }, x);
}

// Lanes of a where the mask has them, of b elsewhere.
inline __attribute__((always_inline)) Vec select(const IntVec& mask, const Vec& a, const Vec& b) {
  return by_parts<Vec>([](IntPart m, FloatPart x, FloatPart y) { return m ? x : y; }, mask, a, b);
}

template <typename W>
inline __attribute__((always_inline)) W load_wide(const void* at) {
  W out;
  each_part([&](auto i) __attribute__((always_inline)) {
    std::memcpy(&out.part[i], (const char*)at + i * sizeof out.part[i], sizeof out.part[i]);
  });
  return out;
}
template <typename W>
inline __attribute__((always_inline)) void store_wide(void* at, const W& x) {
  each_part([&](auto i) __attribute__((always_inline)) {
    std::memcpy((char*)at + i * sizeof x.part[i], &x.part[i], sizeof x.part[i]);
  });
}

// The low halves of sixteen words, from and to memory.
inline __attribute__((always_inline)) UintVec load_halves(const uint16_t* at) {
  UintVec out;
  each_part([&](auto i) __attribute__((always_inline)) {
    HalfPart half;
    std::memcpy(&half, at + i * PART, sizeof half);
    out.part[i] = __builtin_convertvector(half, UintPart);
  });
  return out;
}
inline __attribute__((always_inline)) void store_halves(uint16_t* at, const UintVec& x) {
  each_part([&](auto i) __attribute__((always_inline)) {
    const HalfPart half = __builtin_convertvector(x.part[i], HalfPart);
    std::memcpy(at + i * PART, &half, sizeof half);
  });
}

}  // namespace
