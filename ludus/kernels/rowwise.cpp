// What a decoder's layers do to each row by itself: norms, gated activations, rotary positions; forward and backward.
//
// Plain C interface, no torch headers. A row's result never depends on its neighbours, on how many there are, or on the
// number of threads; sums run in a fixed order of 16 lanes. Arithmetic is fp32; bf16 is rounded where transformers'
// own modules round. The vectors are the compiler's, so every processor it knows is served.

#include <cmath>
#include <cstdint>
#include <vector>

#include "exponential.h"
#include "parallel.h"

namespace {

// Rows whose weight gradients are added up before they join the rest: fixed, so that threads change no bit.
constexpr int64_t CHUNK_ROWS = 64;

// ---- rows in memory --------------------------------------------------------------------------------------------------

// Row i lies at (i / num_inner) * outer + (i % num_inner) * inner; strides count values.
struct Rows {
  int64_t num_inner, outer, inner;
  int64_t at(int64_t i) const { return i / num_inner * outer + i % num_inner * inner; }
};

struct NormRule {
  float eps, offset;    // out = x / rms(x) * (offset + weight)
  int32_t casts_first;  // x / rms(x) is rounded before it is multiplied
};

// ---- RMSNorm ---------------------------------------------------------------------------------------------------------

template <typename T>
float inverse_rms(const T* x, int64_t width, float eps) {
  Vec squares{};
  for (int64_t d = 0; d < width; d += LANES) {
    const Vec values = read(x + d, width - d);
    squares += values * values;
  }
  return 1.f / std::sqrt(sum_of(squares) / float(width) + eps);
}

template <typename T>
void norm(const T* x, const T* weight, const NormRule& rule, T* out, int64_t width) {
  const float inverse = inverse_rms(x, width, rule.eps);
  for (int64_t d = 0; d < width; d += LANES) {
    Vec normed = read(x + d, width - d) * inverse;
    if (rule.casts_first) normed = rounded<T>(normed);
    save(out + d, normed * (read(weight + d, width - d) + rule.offset), width - d);
  }
}

// Writes the gradient of x, and adds that of the weight to `grad_weight` (fp32) unless it is null.
template <typename T>
void norm_backward(const T* grad, const T* x, const T* weight, const NormRule& rule, T* grad_x, float* grad_weight,
                   int64_t width) {
  Vec squares{}, products{};
  for (int64_t d = 0; d < width; d += LANES) {
    const int64_t left = width - d;
    const Vec values = read(x + d, left);
    squares += values * values;
    products += values * (read(grad + d, left) * (read(weight + d, left) + rule.offset));
  }
  const float inverse = 1.f / std::sqrt(sum_of(squares) / float(width) + rule.eps);
  const float pull = inverse * inverse * inverse * sum_of(products) / float(width);
  for (int64_t d = 0; d < width; d += LANES) {
    const int64_t left = width - d;
    const Vec values = read(x + d, left), slope = read(grad + d, left);
    save(grad_x + d, slope * (read(weight + d, left) + rule.offset) * inverse - values * pull, left);
    if (grad_weight) {
      Vec normed = values * inverse;
      if (rule.casts_first) normed = rounded<T>(normed);
      save(grad_weight + d, read(grad_weight + d, left) + slope * normed, left);
    }
  }
}

template <typename T>
void norm_all(const T* x, const Rows& rows, int64_t num_rows, int64_t width, const T* weight, const NormRule& rule,
              T* out, int num_threads) {
  parallel_for(num_rows, Team(num_threads, num_rows * width, MANY_VALUES),
               [&](int64_t i) { norm(x + rows.at(i), weight, rule, out + i * width, width); });
}

template <typename T>
void norm_backward_all(const T* grad, const Rows& grad_rows, const T* x, const Rows& rows, int64_t num_rows,
                       int64_t width, const T* weight, const NormRule& rule, T* grad_x, float* grad_weight,
                       int num_threads) {
  const int64_t num_chunks = (num_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
  std::vector<float> parts(grad_weight ? num_chunks * width : 0, 0.f);
  parallel_for(num_chunks, Team(num_threads, num_rows * width, MANY_VALUES), [&](int64_t chunk) {
    const int64_t end = (chunk + 1) * CHUNK_ROWS < num_rows ? (chunk + 1) * CHUNK_ROWS : num_rows;
    for (int64_t i = chunk * CHUNK_ROWS; i < end; i++)
      norm_backward(grad + grad_rows.at(i), x + rows.at(i), weight, rule, grad_x + i * width,
                    grad_weight ? parts.data() + chunk * width : nullptr, width);
  });
  if (!grad_weight) return;
  std::memset(grad_weight, 0, width * sizeof(float));
  for (int64_t chunk = 0; chunk < num_chunks; chunk++)
    for (int64_t d = 0; d < width; d++) grad_weight[d] += parts[chunk * width + d];
}

// ---- silu(gate) * up -------------------------------------------------------------------------------------------------

template <typename T>
void gate_row(const T* gate, const T* up, T* out, int64_t width) {
  for (int64_t d = 0; d < width; d += LANES) {
    const int64_t left = width - d;
    const Vec x = read(gate + d, left);
    save(out + d, rounded<T>(x * sigmoid(x)) * read(up + d, left), left);
  }
}

// Writes the gradients of gate and up, and what the forward pass returned into `out` unless it is null.
template <typename T>
void gate_row_backward(const T* grad, const T* gate, const T* up, T* grad_gate, T* grad_up, T* out, int64_t width) {
  for (int64_t d = 0; d < width; d += LANES) {
    const int64_t left = width - d;
    const Vec x = read(gate + d, left), other = read(up + d, left), slope = read(grad + d, left);
    const Vec share = sigmoid(x), active = rounded<T>(x * share);
    save(grad_up + d, slope * active, left);
    save(grad_gate + d, rounded<T>(slope * other) * (share * (1.f + x * (1.f - share))), left);
    if (out) save(out + d, active * other, left);
  }
}

// ---- rotary positions ------------------------------------------------------------------------------------------------

// One head: out = x * cos + (-x's second half, x's first half) * sin; `back` multiplies by the transposed matrix.
template <typename T>
void rotate(const T* x, const T* cosine, const T* sine, bool back, T* out, int64_t half) {
  for (int64_t d = 0; d < half; d += LANES) {
    const int64_t left = half - d;
    const Vec low = read(x + d, left), high = read(x + half + d, left);
    Vec sine_low = read(sine + d, left), sine_high = read(sine + half + d, left);
    if (back) {
      const Vec kept = sine_low;
      sine_low = -sine_high;
      sine_high = -kept;
    }
    save(out + d, rounded<T>(low * read(cosine + d, left)) - rounded<T>(high * sine_low), left);
    save(out + half + d, rounded<T>(high * read(cosine + half + d, left)) + rounded<T>(low * sine_high), left);
  }
}

struct Heads {
  int64_t num, head, row;  // strides count values
};

template <typename T>
void rotate_all(const T* q, const Heads& q_heads, const T* k, const Heads& k_heads, const T* cosine, const T* sine,
                int64_t angle_row, int64_t num_rows, int64_t dim, bool back, T* out, int num_threads) {
  const int64_t num_heads = q_heads.num + k_heads.num;
  parallel_for(num_rows, Team(num_threads, num_rows * num_heads * dim, MANY_VALUES), [&](int64_t i) {
    const T *own_cosine = cosine + i * angle_row, *own_sine = sine + i * angle_row;
    T* to = out + i * num_heads * dim;
    for (int64_t h = 0; h < q_heads.num; h++, to += dim)
      rotate(q + i * q_heads.row + h * q_heads.head, own_cosine, own_sine, back, to, dim / 2);
    for (int64_t h = 0; h < k_heads.num; h++, to += dim)
      rotate(k + i * k_heads.row + h * k_heads.head, own_cosine, own_sine, back, to, dim / 2);
  });
}

}  // namespace

// Calls `call` with T as the type that `dtype` names.
#define LUDUS_TYPED(dtype, call) \
  if ((dtype) == FP32) {         \
    using T = float;             \
    call;                        \
  } else {                       \
    using T = uint16_t;          \
    call;                        \
  }

extern "C" {

// out: rows one after another.
void ludus_norm(const void* x, const Rows* rows, int64_t num_rows, int64_t width, const void* weight,
                const NormRule* rule, void* out, int32_t dtype, int32_t num_threads) {
  LUDUS_TYPED(dtype, norm_all((const T*)x, *rows, num_rows, width, (const T*)weight, *rule, (T*)out, num_threads))
}

// grad_x: rows one after another. grad_weight: fp32, or null.
void ludus_norm_backward(const void* grad, const Rows* grad_rows, const void* x, const Rows* rows, int64_t num_rows,
                         int64_t width, const void* weight, const NormRule* rule, void* grad_x, float* grad_weight,
                         int32_t dtype, int32_t num_threads) {
  LUDUS_TYPED(dtype, norm_backward_all((const T*)grad, *grad_rows, (const T*)x, *rows, num_rows, width,
                                       (const T*)weight, *rule, (T*)grad_x, grad_weight, num_threads))
}

// out: rows one after another.
void ludus_gate(const void* gate, int64_t gate_row_stride, const void* up, int64_t up_row_stride, int64_t num_rows,
                int64_t width, void* out, int32_t dtype, int32_t num_threads) {
  const Team team(num_threads, num_rows * width, MANY_VALUES);
  LUDUS_TYPED(dtype, parallel_for(num_rows, team, [&](int64_t i) {
    gate_row((const T*)gate + i * gate_row_stride, (const T*)up + i * up_row_stride, (T*)out + i * width, width);
  }))
}

// grads: rows of 2 * width, gate's gradient before up's. grad and out: rows one after another; out may be null.
void ludus_gate_backward(const void* grad, const void* gate, int64_t gate_row_stride, const void* up,
                         int64_t up_row_stride, int64_t num_rows, int64_t width, void* grads, void* out,
                         int32_t dtype, int32_t num_threads) {
  const Team team(num_threads, num_rows * width, MANY_VALUES);
  LUDUS_TYPED(dtype, parallel_for(num_rows, team, [&](int64_t i) {
    T* to = (T*)grads + i * 2 * width;
    gate_row_backward((const T*)grad + i * width, (const T*)gate + i * gate_row_stride,
                      (const T*)up + i * up_row_stride, to, to + width, out ? (T*)out + i * width : nullptr, width);
  }))
}

// out: per row all heads of q, then all heads of k.
void ludus_rotate(const void* q, const Heads* q_heads, const void* k, const Heads* k_heads, const void* cosine,
                  const void* sine, int64_t angle_row, int64_t num_rows, int64_t dim, int32_t back, void* out,
                  int32_t dtype, int32_t num_threads) {
  LUDUS_TYPED(dtype, rotate_all((const T*)q, *q_heads, (const T*)k, *k_heads, (const T*)cosine, (const T*)sine,
                                angle_row, num_rows, dim, back != 0, (T*)out, num_threads))
}

}  // extern "C"
