// Draws one token for each row of logits: cap, penalties, biases, mask, temperature, truncation, inverse CDF.
//
// Plain C interface, no torch headers. Every row is computed by one thread, in one order of operations: its result
// depends neither on the other rows nor on the number of threads.
//
// A row passes through one scratch line of fp32: logits, then unnormalised probabilities, which stay in the
// second-level cache. The uniform number is looked up on two levels: sums of blocks, then the tokens of one block.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "exponential.h"
#include "parallel.h"

namespace {

// About the square root of common vocabularies: as many blocks as tokens in a block.
constexpr int64_t BLOCK = 256;

// What one row asks for; the fields and their order are those of `_ROW` in the Python wrapper.
struct Request {
  double uniform;      // in [0, 1)
  double temperature;  // 0: greedy
  double top_p, min_p;
  double repetition, frequency, presence;
  int64_t top_k;      // 0: all
  int64_t num_top;    // likeliest tokens to report
  int64_t text_from;  // prompt and answer: texts[text_from .. text_to), the answer begins at answer_from
  int64_t answer_from, text_to;
  int64_t bias_from, bias_to;    // of bias_ids and biases
  int64_t mask_from, num_words;  // of masks: a bit for each token that is allowed; mask_from < 0: all are
  int64_t kept_at;               // line of kept_ids; < 0: not asked for
};

// What requests refer to by place.
struct Extras {
  const int64_t* texts;
  const int64_t* bias_ids;
  const float* biases;
  const uint32_t* masks;
};

// ids, logprobs: one for each row. top_ids, top_logprobs: `num_top` for each row, of which a row fills its own number.
// kept_ids, kept_counts: for each row that asks the first `max_kept` tokens that could be drawn, and how many there are.
struct Results {
  int64_t* ids;
  double* logprobs;
  int64_t num_top;
  int64_t* top_ids;
  double* top_logprobs;
  int64_t max_kept;
  int64_t* kept_ids;
  int64_t* kept_counts;
};

struct Logits {
  const void* values;
  int64_t row_stride, vocab_size;
  float softcap;  // 0: none
  int32_t dtype;
};

// What one thread keeps from row to row.
struct Scratch {
  std::vector<float> probs, sorted, sums;
  std::vector<int32_t> counts, order;
};

template <typename T>
void load_row(const T* logits, int64_t size, float softcap, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < size; i++) out[i] = load(logits + i);
  if (softcap > 0.f)
    for (int64_t i = 0; i < size; i++) out[i] = softcap * std::tanh(out[i] / softcap);
}

// Repetition over prompt and answer, frequency and presence over the answer.
// Source: CTRL (arXiv 1909.05858) eq. 2 for repetition; OpenAI's API reference for the other two.
void penalise(float* logits, int64_t size, const Request& ask, const int64_t* texts, std::vector<int32_t>& counts) {
  counts.assign(size, -1);  // -1: not seen
  for (int64_t at = ask.text_from; at < ask.text_to; at++) {
    int32_t& count = counts[texts[at]];
    if (count < 0) {
      count = 0;
      float& logit = logits[texts[at]];
      logit = float(logit > 0.f ? logit / ask.repetition : logit * ask.repetition);
    }
    count += at >= ask.answer_from;
  }
  for (int64_t at = ask.answer_from; at < ask.text_to; at++) {
    int32_t& count = counts[texts[at]];
    if (count > 0) logits[texts[at]] -= float(ask.frequency * count + ask.presence);
    count = 0;
  }
}

void add_biases(float* logits, const Request& ask, const Extras& extras) {
  for (int64_t at = ask.bias_from; at < ask.bias_to; at++) logits[extras.bias_ids[at]] += extras.biases[at];
}

// -inf where a bit is missing; tokens beyond the words are not allowed.
void forbid(float* logits, int64_t size, const Request& ask, const uint32_t* masks) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  for (int64_t start = 0; start < size; start += 32) {
    const int64_t word = start / 32, end = std::min(size, start + 32);
    const uint32_t bits = word < ask.num_words ? masks[ask.mask_from + word] : 0u;
    if (bits == ~0u) continue;
    for (int64_t i = start; i < end; i++) logits[i] = bits >> (i - start) & 1u ? logits[i] : never;
  }
}

float largest_of(const float* values, int64_t size) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < size; i++) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

// Logits to probabilities relative to the largest one's.
void weigh(float* values, int64_t size, float largest, float temperature) {
#pragma omp simd
  for (int64_t i = 0; i < size; i++) values[i] = exp_one((values[i] - largest) / temperature);
}

// How many of the largest values it takes to weigh `wanted`; the first `num_sorted` are the largest, in falling order.
// Few of many are needed as a rule, so they are put in order piece by piece, and as far as they are needed.
size_t count_until(std::vector<float>& values, double wanted, size_t num_sorted) {
  size_t count = 0;
  for (double before = 0.0; count < values.size() && before < wanted; count++) {
    if (count == num_sorted) {
      num_sorted = std::min(values.size(), std::max<size_t>(64, 8 * count));
      if (num_sorted < values.size())
        std::nth_element(values.begin() + count, values.begin() + num_sorted, values.end(), std::greater<float>());
      std::sort(values.begin() + count, values.begin() + num_sorted, std::greater<float>());
    }
    before += values[count];
  }
  return count;
}

// Smallest probability that is kept: top-k, then top-p of what is left, then min-p. The largest probability is 1.
float kept_threshold(const float* probs, int64_t size, const Request& ask, std::vector<float>& sorted) {
  float threshold = float(ask.min_p);
  double total = 0.0;
  if (ask.top_k > 0) {
    sorted.assign(probs, probs + size);
    const int64_t num_kept = std::min(ask.top_k, size);
    std::partial_sort(sorted.begin(), sorted.begin() + num_kept, sorted.end(), std::greater<float>());
    sorted.resize(num_kept);
    for (float prob : sorted) total += prob;
    threshold = std::max(threshold, sorted.back());
  } else if (ask.top_p < 1.0) {
    for (int64_t i = 0; i < size; i++) total += probs[i];
    // All tokens below this together weigh less than what top-p cuts off, so they need no sorting; the half leaves
    // room for rounding.
    const double negligible = 0.5 * (1.0 - ask.top_p) * total / double(size);
    sorted.clear();
    for (int64_t i = 0; i < size; i++)
      if (probs[i] >= negligible) sorted.push_back(probs[i]);
  }
  if (ask.top_p < 1.0 && !sorted.empty()) {
    const size_t num_kept = count_until(sorted, ask.top_p * total, ask.top_k > 0 ? sorted.size() : 0);
    threshold = std::max(threshold, sorted[std::max<size_t>(1, num_kept) - 1]);
  }
  return threshold;
}

void truncate(float* probs, int64_t size, float threshold) {
#pragma omp simd
  for (int64_t i = 0; i < size; i++) probs[i] = probs[i] < threshold ? 0.f : probs[i];
}

float sum_of(const float* values, int64_t size) {
  float total = 0.f;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < size; i++) total += values[i];
  return total;
}

// The token at which the distribution passes the number; one of probability zero never does.
int64_t inverse_cdf(const float* probs, int64_t size, double uniform, double* total, std::vector<float>& sums) {
  const int64_t num_blocks = (size + BLOCK - 1) / BLOCK;
  const auto length = [&](int64_t block) { return std::min(BLOCK, size - block * BLOCK); };
  sums.resize(num_blocks);
  *total = 0.0;
  for (int64_t block = 0; block < num_blocks; block++)
    *total += sums[block] = sum_of(probs + block * BLOCK, length(block));
  const double wanted = uniform * *total;
  double before = 0.0;
  int64_t block = 0;
  while (block < num_blocks - 1 && before + sums[block] <= wanted) before += sums[block++];
  const float* own = probs + block * BLOCK;
  double reached = 0.0;
  for (int64_t i = 0; i < length(block); i++) {
    reached += own[i];
    if (reached > wanted - before) return block * BLOCK + i;
  }
  // rounding of the block's sum may point just past its last possible token
  int64_t last = length(block) - 1;
  while (last > 0 && own[last] == 0.f) last--;
  return block * BLOCK + last;
}

// The tokens that could be drawn; `sums` are those of their blocks.
void report_kept(const float* probs, int64_t size, const std::vector<float>& sums, int64_t max_kept, int64_t* ids,
                 int64_t* count) {
  *count = 0;
  for (int64_t block = 0; block < int64_t(sums.size()); block++) {
    if (sums[block] == 0.f) continue;
    for (int64_t i = block * BLOCK; i < std::min(size, (block + 1) * BLOCK); i++) {
      if (probs[i] == 0.f) continue;
      if (*count < max_kept) ids[*count] = i;
      ++*count;
    }
  }
}

// Ids of the likeliest tokens, likeliest first, and their logprobs.
void report_top(const float* probs, int64_t size, int64_t num_top, double total, int64_t* ids, double* logprobs,
                std::vector<int32_t>& order) {
  order.resize(size);
  for (int64_t i = 0; i < size; i++) order[i] = int32_t(i);
  std::partial_sort(order.begin(), order.begin() + num_top, order.end(), [&](int32_t one, int32_t other) {
    return probs[one] != probs[other] ? probs[one] > probs[other] : one < other;
  });
  for (int64_t i = 0; i < num_top; i++) {
    ids[i] = order[i];
    logprobs[i] = std::log(probs[order[i]] / total);
  }
}

template <typename T>
void draw_row(const T* logits_row, const Logits& logits, const Request& ask, const Extras& extras, int64_t row,
              const Results& results, Scratch& scratch) {
  const int64_t size = logits.vocab_size;
  scratch.probs.resize(size);
  float* probs = scratch.probs.data();
  load_row(logits_row, size, logits.softcap, probs);
  if (ask.text_to > ask.text_from) penalise(probs, size, ask, extras.texts, scratch.counts);
  add_biases(probs, ask, extras);
  if (ask.mask_from >= 0) forbid(probs, size, ask, extras.masks);
  const float largest = largest_of(probs, size);
  const bool is_greedy = ask.temperature == 0.0;
  int64_t& id = results.ids[row];
  if (is_greedy) id = std::max_element(probs, probs + size) - probs;
  weigh(probs, size, largest, is_greedy ? 1.f : float(ask.temperature));
  // greedy keeps the whole distribution: it draws nothing from it
  if (!is_greedy && (ask.top_k > 0 || ask.top_p < 1.0 || ask.min_p > 0.0))
    truncate(probs, size, kept_threshold(probs, size, ask, scratch.sorted));
  double total;
  const int64_t drawn = inverse_cdf(probs, size, ask.uniform, &total, scratch.sums);
  if (!is_greedy) id = drawn;
  results.logprobs[row] = std::log(probs[id] / total);
  if (ask.num_top > 0)
    report_top(probs, size, ask.num_top, total, results.top_ids + row * results.num_top,
               results.top_logprobs + row * results.num_top, scratch.order);
  if (ask.kept_at >= 0)
    report_kept(probs, size, scratch.sums, results.max_kept, results.kept_ids + ask.kept_at * results.max_kept,
                results.kept_counts + ask.kept_at);
}

template <typename T>
void draw_all(const Logits& logits, const Request* asks, int64_t num_rows, const Extras& extras, const Results& results,
              int num_threads) {
  parallel_tasks<Scratch>(num_rows, 1, Team(num_threads, num_rows, 1), [&](int64_t row, Scratch& scratch) {
    draw_row((const T*)logits.values + row * logits.row_stride, logits, asks[row], extras, row, results, scratch);
  });
}

}  // namespace

extern "C" {

void ludus_draw(const Logits* logits, const Request* asks, int64_t num_rows, const Extras* extras,
                const Results* results, int32_t num_threads) {
  if (logits->dtype == FP32) draw_all<float>(*logits, asks, num_rows, *extras, *results, num_threads);
  else draw_all<uint16_t>(*logits, asks, num_rows, *extras, *results, num_threads);
}

}  // extern "C"
