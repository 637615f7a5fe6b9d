// Softmax over the vocabulary, row by row: log-probability of a target, entropy, and the gradient in the logits' place.
//
// Plain C interface, no torch headers. A row is computed by one thread in one order of operations. Logits are fp32 or
// bf16; everything between them and the results is fp32.

#include <cmath>
#include <cstdint>

#include "exponential.h"
#include "parallel.h"

namespace {

struct Logits {
  void* data;
  int64_t num_rows, vocabulary;
  float softcap;  // 0: none
  int32_t dtype;
};

// Per row.
struct Choices {
  const int64_t* targets;
  const float* temperatures;
};

inline Vec bend(Vec logits, float softcap) { return softcap > 0.f ? tanh_vec(logits / softcap) * softcap : logits; }

inline float bend(float logit, float softcap) { return bend(fill(logit), softcap)[0]; }

// f(address, number of logits there) for every LANES logits of a row; those that are missing at its end are copied to a
// buffer, which is copied back.
template <typename T, typename F>
inline void each_vector(T* row, int64_t vocabulary, F f) {
  int64_t at = 0;
  for (; at + LANES <= vocabulary; at += LANES) f(row + at, LANES);
  const int left = int(vocabulary - at);
  if (left == 0) return;
  T buffer[LANES] = {};
  for (int i = 0; i < left; i++) buffer[i] = row[at + i];
  f(buffer, left);
  for (int i = 0; i < left; i++) row[at + i] = buffer[i];
}

template <typename T>
void summarise_row(T* row, const Logits& logits, int64_t target, float temperature, float* logprob, float* entropy,
                   float* log_norm) {
  const float softcap = logits.softcap, sharpness = 1.f / temperature, chosen = load(row + target);
  Vec top = fill(chosen);
  each_vector(row, logits.vocabulary,
              [&](T* at, int count) { top = larger(top, only_first(read(at), count, chosen)); });
  // the cap keeps the order of logits
  const float largest = bend(max_of(top), softcap) * sharpness;
  Vec total = {}, moment = {};
  each_vector(row, logits.vocabulary, [&](T* at, int count) {
    const Vec score = bend(read(at), softcap) * sharpness - largest;
    const Vec weight = only_first(exp_vec(score), count, 0.f);
    total += weight;
    moment += weight * score;
  });
  const float sum = sum_of(total), log_sum = std::log(sum);
  *logprob = bend(chosen, softcap) * sharpness - largest - log_sum;
  *entropy = log_sum - sum_of(moment) / sum;
  *log_norm = largest + log_sum;
}

// Of one row: the derivatives of a loss by the target's log-probability and by the entropy, and the latter itself.
struct Slopes {
  float logprob, entropy_slope, entropy;
};

// Logits become the loss's derivative by them.
template <typename T>
void differentiate_row(T* row, const Logits& logits, int64_t target, float temperature, float log_norm, Slopes slopes) {
  const float softcap = logits.softcap, sharpness = 1.f / temperature;
  const float scale = slopes.logprob * sharpness, entropy_scale = slopes.entropy_slope * sharpness;
  const float chosen = bend(load(row + target), softcap);
  const auto by_all = [&](Vec logprob) {
    return exp_vec(logprob) * (-scale - entropy_scale * (logprob + slopes.entropy));
  };
  each_vector(row, logits.vocabulary, [&](T* at, int) {
    const Vec bent = bend(read(at), softcap);
    Vec grad = by_all(bent * sharpness - log_norm);
    if (softcap > 0.f) grad *= 1.f - bent * bent / (softcap * softcap);
    save(at, grad);
  });
  float own = scale + by_all(fill(chosen * sharpness - log_norm))[0];
  if (softcap > 0.f) own *= 1.f - chosen * chosen / (softcap * softcap);
  T whole[LANES];
  save(whole, fill(own));
  row[target] = whole[0];
}

template <typename T>
void summarise(const Logits& logits, const Choices& choices, float* results, int num_threads) {
  parallel_for(logits.num_rows, Team(num_threads, logits.num_rows, 1), [&](int64_t row) {
    summarise_row((T*)logits.data + row * logits.vocabulary, logits, choices.targets[row], choices.temperatures[row],
                  results + row, results + logits.num_rows + row, results + 2 * logits.num_rows + row);
  });
}

template <typename T>
void differentiate(const Logits& logits, const Choices& choices, const float* slopes, int num_threads) {
  const int64_t n = logits.num_rows;
  parallel_for(n, Team(num_threads, n, 1), [&](int64_t row) {
    differentiate_row((T*)logits.data + row * logits.vocabulary, logits, choices.targets[row],
                      choices.temperatures[row], slopes[row], {slopes[n + row], slopes[2 * n + row], slopes[3 * n + row]});
  });
}

}  // namespace

extern "C" {

// results: [3][rows], log-probability of the target, entropy, log of the normaliser.
void ludus_summarise(const Logits* logits, const Choices* choices, float* results, int32_t num_threads) {
  if (logits->dtype == FP32) summarise<float>(*logits, *choices, results, num_threads);
  else summarise<uint16_t>(*logits, *choices, results, num_threads);
}

// Writes the gradient over the logits. slopes: [4][rows], log of the normaliser, derivatives by the log-probability and by
// the entropy, and the entropy.
void ludus_differentiate(const Logits* logits, const Choices* choices, const float* slopes, int32_t num_threads) {
  if (logits->dtype == FP32) differentiate<float>(*logits, *choices, slopes, num_threads);
  else differentiate<uint16_t>(*logits, *choices, slopes, num_threads);
}

}  // extern "C"
