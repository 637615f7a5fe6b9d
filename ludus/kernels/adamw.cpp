// One step of AdamW on fp32 weights with moments in bf16, rounded up or down by chance.
//
// Plain C interface, no torch headers. Rounding to the nearest would lose every change of a moment that is smaller than
// half a step of bf16, one part in 256: most changes of the second moment. Rounded up with the probability of what is
// cut off, moments are right on average.
// Source: Gupta et al., "Deep Learning with Limited Numerical Precision" (arXiv 1502.02551) sec. 3; for optimizer
// states in bf16: Zamirai et al., "Revisiting BFloat16 Training" (arXiv 2010.06192).

#include <cmath>
#include <cstdint>

#include "parallel.h"
#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 1024;  // numbers of one task of a thread

struct Step {
  float lr, beta1, beta2, eps, decay;
  float correction1, correction2;  // 1 - beta^t
  uint32_t seed;                   // of the roundings
};

inline Vec root(Vec x) {
  float numbers[LANES];
  store_vec(numbers, x);
#pragma omp simd
  for (int i = 0; i < LANES; i++) numbers[i] = std::sqrt(numbers[i]);
  return load_vec(numbers);
}

inline void step_vector(float* weight, const float* grad, uint16_t* first, uint16_t* second, int64_t index,
                        const Step& step) {
  const UintVec chance = mix((as_uint(LANE) + uint32_t(index)) ^ step.seed);
  const Vec g = load_vec(grad);
  const Vec m = read(first) * step.beta1 + g * (1.f - step.beta1);
  const Vec v = read(second) * step.beta2 + g * g * (1.f - step.beta2);
  const Vec size = root(v) * (1.f / std::sqrt(step.correction2)) + step.eps;
  store_vec(weight, load_vec(weight) * (1.f - step.lr * step.decay) - (step.lr / step.correction1) * m / size);
  save_by_chance(first, m, chance);
  save_by_chance(second, v, chance >> 16);
}

}  // namespace

extern "C" {

void ludus_adamw(float* weights, const float* grads, uint16_t* first, uint16_t* second, int64_t count, const Step* step,
                 int32_t num_threads) {
  parallel_for((count + BLOCK - 1) / BLOCK, Team(num_threads, count, BLOCK), [=](int64_t block) {
    const int64_t start = block * BLOCK, end = start + BLOCK < count ? start + BLOCK : count;
    int64_t at = start;
    for (; at + LANES <= end; at += LANES) step_vector(weights + at, grads + at, first + at, second + at, at, *step);
    if (at == end) return;
    float weight[LANES] = {}, grad[LANES] = {};
    uint16_t own_first[LANES] = {}, own_second[LANES] = {};
    const int64_t left = end - at;
    std::memcpy(weight, weights + at, left * sizeof(float));
    std::memcpy(grad, grads + at, left * sizeof(float));
    std::memcpy(own_first, first + at, left * sizeof(uint16_t));
    std::memcpy(own_second, second + at, left * sizeof(uint16_t));
    step_vector(weight, grad, own_first, own_second, at, *step);
    std::memcpy(weights + at, weight, left * sizeof(float));
    std::memcpy(first + at, own_first, left * sizeof(uint16_t));
    std::memcpy(second + at, own_second, left * sizeof(uint16_t));
  });
}

}  // extern "C"
