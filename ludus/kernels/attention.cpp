// Attention over paged keys and values for many query tokens, each with its own page table and length.
//
// Plain C interface, no torch headers: it compiles in seconds and serves every version of torch.
//
// Two layouts of a page of 16 tokens and head width D; ludus_layout() says which one a type has:
//   rows   keys [16][D], values [16][D]; fp32 or bf16, written for the compiler's vectoriser
//   pairs  keys [D/2][16][2], values [8][D][2]; bf16 alone, one AVX512-BF16 instruction multiplies 16 x 2 values
//
// A page holds, for one layer and one head of keys, 16*D keys followed by 16*D values.
//
// Every query token is computed by one thread, in one order of operations, whatever else the step computes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "scores.h"
#include "words.h"

namespace {

constexpr int PAGE = 16;

struct Shape {
  int32_t num_heads, num_kv_heads, head_dim, dtype;
};

// All rows of a step, the same for every layer.
struct Rows {
  const int32_t* page_ids;
  const int64_t* table_start;
  const int32_t* num_seen;
  const int64_t* slots;  // where the keys and values of a row go: page * PAGE + place
  int64_t num_rows;
  int64_t num_seen_in_all;
  int32_t any_neighbours;  // some rows see what other rows of this step store
};

// Heads of one row for each token: where head h of row i begins.
struct Heads {
  const void* values;
  int64_t head, row;  // strides
};

// Fewer tokens seen than this are not worth a second thread.
constexpr int64_t FEW_TOKENS = 256;

// ---- rows ----------------------------------------------------------------------------------------------------------

template <typename T>
void store_rows(const T* k, const T* v, T* page, int place, int dim) {
  std::memcpy(page + place * dim, k, dim * sizeof(T));
  std::memcpy(page + (PAGE + place) * dim, v, dim * sizeof(T));
}

// One query token, all query heads of one head of keys. `scratch` grows as needed and is reused.
template <typename T>
void attend_rows(const T* q, int64_t q_head_stride, const T* layer, int64_t page_stride, const int32_t* table, int first,
                 int num_seen, const Rule& rule, int head, int group, int dim, T* out, std::vector<float>& scratch) {
  const int num_keys = num_seen - first;
  scratch.resize(size_t(num_keys) * group + size_t(group) * 2 * dim + dim);
  float* scores = scratch.data();                // [group][num_keys]
  float* queries = scores + size_t(num_keys) * group;  // [group][dim], scaled
  float* sums = queries + size_t(group) * dim;   // [group][dim]
  float* line = sums + size_t(group) * dim;      // [dim], one key or value in fp32
  for (int g = 0; g < group; g++)
    for (int d = 0; d < dim; d++) queries[g * dim + d] = load(q + g * q_head_stride + d) * rule.scale;
  for (int at = first; at < num_seen; at++) {
    const T* key = layer + table[at / PAGE] * page_stride + (at % PAGE) * dim;
    for (int d = 0; d < dim; d++) line[d] = load(key + d);
    for (int g = 0; g < group; g++) {
      float sum = 0.f;
#pragma omp simd reduction(+ : sum)
      for (int d = 0; d < dim; d++) sum += queries[g * dim + d] * line[d];
      scores[size_t(g) * num_keys + at - first] = sum;
    }
  }
  std::memset(sums, 0, size_t(group) * dim * sizeof(float));
  for (int g = 0; g < group; g++) {
    float* row = scores + size_t(g) * num_keys;
    if (rule.softcap > 0.f)
      for (int i = 0; i < num_keys; i++) row[i] = rule.softcap * std::tanh(row[i] / rule.softcap);
    const float sink = rule.sink(head + g);
    float largest = sink, total = 0.f;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < num_keys; i++) largest = row[i] > largest ? row[i] : largest;
#pragma omp simd reduction(+ : total)
    for (int i = 0; i < num_keys; i++) {
      row[i] = exp_one(row[i] - largest);
      total += row[i];
    }
    const float inverse = 1.f / (total + exp_one(sink - largest));
    for (int i = 0; i < num_keys; i++) row[i] *= inverse;
  }
  for (int at = first; at < num_seen; at++) {
    const T* value = layer + table[at / PAGE] * page_stride + (PAGE + at % PAGE) * dim;
    for (int d = 0; d < dim; d++) line[d] = load(value + d);
    for (int g = 0; g < group; g++) {
      const float weight = scores[size_t(g) * num_keys + at - first];
      float* sum = sums + g * dim;
#pragma omp simd
      for (int d = 0; d < dim; d++) sum[d] += weight * line[d];
    }
  }
  for (int i = 0; i < group * dim; i++) save(out + i, sums[i]);
}

// ---- pairs ---------------------------------------------------------------------------------------------------------

#ifdef LUDUS_PAIRS

void store_pairs(const uint16_t* k, const uint16_t* v, uint16_t* page, int place, int dim) {
  for (int j = 0; j < dim / 2; j++) std::memcpy(page + (j * PAGE + place) * 2, k + 2 * j, 4);
  uint16_t* values = page + PAGE * dim + (place / 2) * dim * 2 + (place & 1);
  for (int d = 0; d < dim; d++) values[2 * d] = v[d];
}

// Pages lie anywhere in memory. Several are read side by side, line by line, because the processor follows several
// streams at once but takes a while to see where a new one leads; and while it reads keys it is told of the values
// behind them, while it reads values of the next head's keys behind those.
constexpr int MOST_STREAMS = 4;

inline void fetch_line(const uint16_t* at) { _mm_prefetch((const char*)at, _MM_HINT_T0); }

// Scores of G query heads against P pages: two chains of sums per head and page hide the latency of the multiply-add.
template <int G, int P>
inline void page_scores(const uint32_t* const* q, const uint16_t* const* keys, int dim, Vec (*out)[G]) {
  Vec even[P][G] = {}, odd[P][G] = {};
  for (int j = 0; j < dim / 2; j += 2)
    for (int p = 0; p < P; p++) {
      fetch_line(keys[p] + (dim / 2 + j) * PAGE * 2);
      fetch_line(keys[p] + (dim / 2 + j + 1) * PAGE * 2);
      const Vec key0 = load_vec(keys[p] + j * PAGE * 2), key1 = load_vec(keys[p] + (j + 1) * PAGE * 2);
      for (int g = 0; g < G; g++) {
        even[p][g] = Pairs::add_product(even[p][g], key0, q[g][j]);
        odd[p][g] = Pairs::add_product(odd[p][g], key1, q[g][j + 1]);
      }
    }
  for (int p = 0; p < P; p++)
    for (int g = 0; g < G; g++) out[p][g] = even[p][g] + odd[p][g];
}

// The same for up to MOST_STREAMS pages. Returns how many were taken: as many as registers hold sums for.
template <int G>
inline int some_page_scores(const uint32_t* const* q, const uint16_t* const* keys, int num_pages, int dim,
                            Vec (*out)[G]) {
  constexpr int MOST = G <= 3 ? MOST_STREAMS : 3;
  if (num_pages >= MOST) return page_scores<G, MOST>(q, keys, dim, out), MOST;
  if (num_pages == 3) return page_scores<G, 3>(q, keys, dim, out), 3;
  if (num_pages == 2) return page_scores<G, 2>(q, keys, dim, out), 2;
  return page_scores<G, 1>(q, keys, dim, out), 1;
}

// Weighted values of G query heads for 16*W dimensions starting at `from`, over all pages.
template <int G, int W>
void weigh_values(const uint16_t* layer, int64_t page_stride, const int32_t* table, int first_page, int end_page,
                  const uint32_t* weights, const float* totals, int dim, int from, uint16_t* out) {
  Vec sums[G][W] = {};
  for (int page = first_page; page < end_page; page += MOST_STREAMS) {
    const int num_pages = end_page - page < MOST_STREAMS ? end_page - page : MOST_STREAMS;
    const uint16_t* values[MOST_STREAMS];
    for (int p = 0; p < num_pages; p++) values[p] = layer + table[page + p] * page_stride + PAGE * dim + from * 2;
    const uint32_t* pairs = weights + size_t(page - first_page) * G * 8;
    for (int t = 0; t < 8; t++)
      for (int p = 0; p < num_pages; p++) {
        Vec value[W];
        for (int w = 0; w < W; w++) value[w] = load_vec(values[p] + (t * dim + 16 * w) * 2);
        for (int w = 0; w < W; w++) fetch_line(values[p] + PAGE * dim + (t * dim + 16 * w) * 2);
        for (int g = 0; g < G; g++) {
          const uint32_t weight = pairs[(p * G + g) * 8 + t];
          for (int w = 0; w < W; w++) sums[g][w] = Pairs::add_product(sums[g][w], value[w], weight);
        }
      }
  }
  for (int g = 0; g < G; g++) {
    const float inverse = 1.f / totals[g];
    for (int w = 0; w < W; w++) save(out + g * dim + from + 16 * w, sums[g][w] * inverse);
  }
}

// One query token, G query heads of one head of keys.
template <int G>
void attend_pairs(const uint16_t* q, int64_t q_head_stride, const uint16_t* layer, int64_t page_stride,
                  const int32_t* table, int first, int num_seen, const Rule& rule, int head, int dim, uint16_t* out,
                  std::vector<float>& scratch) {
  const int first_page = first / PAGE, end_page = (num_seen + PAGE - 1) / PAGE, num_pages = end_page - first_page;
  scratch.resize(size_t(num_pages) * G * (PAGE + 8));
  float* scores = scratch.data();                                        // [page][G][16]
  uint32_t* weights = (uint32_t*)(scores + size_t(num_pages) * G * PAGE);  // [page][G][8] pairs of bf16
  const uint32_t* queries[G];
  Vec largest[G], total[G];
  for (int g = 0; g < G; g++) {
    queries[g] = (const uint32_t*)(q + g * q_head_stride);
    largest[g] = fill(rule.sink(head + g));
    total[g] = Vec{};
  }
  for (int page = first_page; page < end_page;) {
    const uint16_t* keys[MOST_STREAMS];
    const int num_ahead = end_page - page < MOST_STREAMS ? end_page - page : MOST_STREAMS;
    for (int p = 0; p < num_ahead; p++) keys[p] = layer + table[page + p] * page_stride;
    Vec score[MOST_STREAMS][G];
    const int num_taken = some_page_scores<G>(queries, keys, num_ahead, dim, score);
    for (int p = 0; p < num_taken; p++, page++) {
      const IntVec token = page * PAGE + LANE, seen = (token >= first) & (token < num_seen);
      for (int g = 0; g < G; g++) {
        Vec own = score[p][g] * rule.scale;
        if (rule.softcap > 0.f) own = tanh_vec(own / rule.softcap) * rule.softcap;
        own = select(seen, own, fill(HIDDEN));
        largest[g] = larger(largest[g], own);
        store_vec(scores + (size_t(page - first_page) * G + g) * PAGE, own);
      }
    }
  }
  for (int g = 0; g < G; g++) largest[g] = fill(max_of(largest[g]));
  for (int page = 0; page < num_pages; page++)
    for (int g = 0; g < G; g++) {
      const size_t at = size_t(page) * G + g;
      const Vec weight = exp_for_bf16(load_vec(scores + at * PAGE) - largest[g]);
      total[g] += weight;
      save((uint16_t*)(weights + at * 8), weight);
    }
  float totals[G];
  for (int g = 0; g < G; g++) totals[g] = sum_of(total[g]) + exp_one(rule.sink(head + g) - largest[g][0]);
  int from = 0;
  for (; from + 64 <= dim; from += 64)
    weigh_values<G, 4>(layer, page_stride, table, first_page, end_page, weights, totals, dim, from, out);
  for (; from < dim; from += 16)
    weigh_values<G, 1>(layer, page_stride, table, first_page, end_page, weights, totals, dim, from, out);
}

void attend_pairs_group(const uint16_t* q, int64_t q_head_stride, const uint16_t* layer, int64_t page_stride,
                        const int32_t* table, int first, int num_seen, const Rule& rule, int head, int group,
                        int dim, uint16_t* out, std::vector<float>& scratch) {
  for (int g = 0; g < group;) {
    const uint16_t* own = q + g * q_head_stride;
    uint16_t* to = out + g * dim;
    const int left = group - g;
    // four heads fill the registers; five are better split into three and two than into four and one
    const int take = left == 5 ? 3 : left > 4 ? 4 : left;
#define LUDUS_ATTEND(G) attend_pairs<G>(own, q_head_stride, layer, page_stride, table, first, num_seen, rule, head + g, dim, to, scratch)
    if (take == 4) LUDUS_ATTEND(4);
    else if (take == 3) LUDUS_ATTEND(3);
    else if (take == 2) LUDUS_ATTEND(2);
    else LUDUS_ATTEND(1);
#undef LUDUS_ATTEND
    g += take;
  }
}

#endif

// One layer of a step: every row's keys and values go into its page, then its queries attend.
template <typename T>
struct Layer {
  const T *q, *k, *v;
  int64_t q_head, q_row, k_head, k_row, v_head, v_row;
  T *pages, *out;
  const Rows& rows;
  const Rule& rule;
  const Shape& shape;

  int64_t page_size() const { return int64_t(2) * PAGE * shape.head_dim; }

  template <typename Store>
  void store_row(int64_t row, Store store) const {
    const int64_t slot = rows.slots[row];
    T* page = pages + (slot / PAGE) * shape.num_kv_heads * page_size();
    for (int h = 0; h < shape.num_kv_heads; h++)
      store(k + h * k_head + row * k_row, v + h * v_head + row * v_row, page + h * page_size(), int(slot % PAGE),
            shape.head_dim);
  }

  template <typename Attend>
  void attend_head(int64_t row, int64_t h, Attend attend, std::vector<float>& scratch) const {
    const int group = shape.num_heads / shape.num_kv_heads, num_seen = rows.num_seen[row];
    const int first = rule.window > 0 && num_seen > rule.window ? num_seen - rule.window : 0;
    attend(q + h * group * q_head + row * q_row, q_head, pages + h * page_size(), page_size() * shape.num_kv_heads,
           rows.page_ids + rows.table_start[row], first, num_seen, rule, int(h) * group, group, shape.head_dim,
           out + (row * shape.num_heads + h * group) * shape.head_dim, scratch);
  }
};

template <typename T, typename Store, typename Attend>
void run_layer(const Layer<T>& layer, int num_threads, Store store, Attend attend) {
  const int64_t num_rows = layer.rows.num_rows, num_kv_heads = layer.shape.num_kv_heads;
  const Team team(num_threads, layer.rows.num_seen_in_all, FEW_TOKENS);
  typedef std::vector<float> Scratch;
  if (layer.rows.any_neighbours) {
    parallel_for(num_rows, team, [&](int64_t row) { layer.store_row(row, store); });
    parallel_tasks<Scratch>(num_rows * num_kv_heads, 4, team, [&](int64_t task, Scratch& scratch) {
      layer.attend_head(task / num_kv_heads, task % num_kv_heads, attend, scratch);
    });
  } else {
    parallel_tasks<Scratch>(num_rows, 4, team, [&](int64_t row, Scratch& scratch) {
      layer.store_row(row, store);
      for (int64_t h = 0; h < num_kv_heads; h++) layer.attend_head(row, h, attend, scratch);
    });
  }
}

template <typename T, typename Store, typename Attend>
void run_as(const Heads& q, const Heads& k, const Heads& v, void* pages, const Rows& rows, const Rule& rule,
            const Shape& shape, void* out, int num_threads, Store store, Attend attend) {
  const Layer<T> layer{(const T*)q.values, (const T*)k.values, (const T*)v.values, q.head, q.row, k.head, k.row,
                       v.head, v.row, (T*)pages, (T*)out, rows, rule, shape};
  run_layer(layer, num_threads, store, attend);
}

}  // namespace

extern "C" {

// 1: bf16 pages hold pairs. 0: rows.
int32_t ludus_layout() {
#ifdef LUDUS_PAIRS
  return 1;
#else
  return 0;
#endif
}

// Stores keys and values of all rows into the pages of one layer, then writes what the queries make of them to `out`,
// [row][head][dim].
void ludus_attend(const Heads* q, const Heads* k, const Heads* v, void* pages, const Rows* rows, const Rule* rule,
                  const Shape* shape, void* out, int32_t num_threads) {
  if (shape->dtype == FP32)
    run_as<float>(*q, *k, *v, pages, *rows, *rule, *shape, out, num_threads, store_rows<float>, attend_rows<float>);
  else
#ifdef LUDUS_PAIRS
    run_as<uint16_t>(*q, *k, *v, pages, *rows, *rule, *shape, out, num_threads, store_pairs, attend_pairs_group);
#else
    run_as<uint16_t>(*q, *k, *v, pages, *rows, *rule, *shape, out, num_threads, store_rows<uint16_t>,
                     attend_rows<uint16_t>);
#endif
}

}  // extern "C"
