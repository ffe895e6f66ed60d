// A decoder layer is, bit for bit, what its parts compute one after another, with any threads; and
// a row's result does not depend on the rows after it.
#include "dart/layer.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "instruction_sets.h"

namespace {

using dart::Instructions;
using dart::WeightType;

constexpr std::size_t kWidth = 64, kHeads = 4, kKvHeads = 2, kHead = 16, kHidden = 96;
constexpr std::size_t kCached = 21, kCapacity = 40, kSequences = 2;

std::vector<float> random_floats(std::size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

// Everything that a layer refers to.
struct Problem {
  Problem(std::size_t rows, bool norms_after, WeightType type)
      : rows(rows), norms_after(norms_after), type(type) {
    const std::size_t all = kSequences * rows;
    x = random_floats(all * kWidth, 1);
    scales = random_floats(6 * kWidth, 2);
    cos = random_floats(all * kHead / 2, 3);
    sin = random_floats(all * kHead / 2, 4);
    const std::size_t cached = kSequences * kKvHeads * kCapacity * kHead;
    k = random_floats(cached, 5);
    v = random_floats(cached, 6);
    mask.assign(kSequences * rows * rows, 0);
    for (std::size_t r = 0; r < kSequences * rows; ++r) {
      for (std::size_t c = 0; c <= r % rows; ++c) mask[r * rows + c] = 1;
    }
    add(qkv, kWidth, (kHeads + 2 * kKvHeads) * kHead, 7);
    add(out, kHeads * kHead, kWidth, 8);
    add(gate_up, kWidth, 2 * kHidden, 9);
    add(down, kHidden, kWidth, 10);
    add(draft_q, 2 * kWidth, kHeads * kHead, 13);
    add(draft_kv, 2 * kWidth, 2 * kKvHeads * kHead, 14);
  }

  void add(dart::Matrix& matrix, std::size_t in, std::size_t outputs, unsigned seed) {
    matrix.in = in;
    // Two parts of different types.
    for (std::size_t outs : {std::size_t{32}, outputs - 32}) {
      const WeightType own = outs == 32 ? WeightType::kFloat32 : type;
      const std::vector<float> weights = random_floats((outs + 31) / 32 * 32 * in, seed++, 0.1f);
      if (own == WeightType::kFloat32) {
        floats.push_back(weights);
        matrix.parts.push_back({floats.back().data(), own, outs});
      } else {
        bytes.emplace_back((outs + 31) / 32 * dart::tile_bytes(dart::form_of(own), in));
        dart::pack_q8_0(weights.data(), in, outs, bytes.back().data());
        matrix.parts.push_back({bytes.back().data(), own, outs});
      }
      matrix.out += outs;
    }
    floats.push_back(random_floats(outputs, seed));
    matrix.bias = floats.back().data();
  }

  dart::Norm norm(std::size_t which, bool there) const {
    return {there ? scales.data() + which * kWidth : nullptr, kWidth, 1e-5f, 1};
  }

  dart::Layer layer(float* y, float* new_k, float* new_v, std::size_t room) const {
    dart::Layer layer{};
    layer.x = x.data();
    layer.y = y;
    layer.before_attention = norm(0, true);
    layer.after.after_attention = norm(1, norms_after);
    layer.after.before_mlp = norm(2, true);
    layer.after.after_mlp = norm(3, norms_after);
    layer.qkv = qkv;
    layer.after.out = out;
    layer.after.gate_up = gate_up;
    layer.after.down = down;
    layer.after.activation = dart::Activation::kSilu;
    layer.after.multiplier = norms_after ? 0.5f : 1;
    layer.new_rows = {new_k, new_v, room};
    layer.heads = {nullptr, cos.data(), sin.data(), scales.data(), scales.data() + kHead,
                   false,   1e-5f,      0,          nullptr,       nullptr,
                   nullptr, kSequences, rows,       kHeads,        kKvHeads,
                   kHead,   kHead};
    layer.attention.k = k.data();
    layer.attention.v = v.data();
    layer.attention.length = lengths;
    layer.attention.mask = reinterpret_cast<const bool*>(mask.data());
    layer.attention.sequences = kSequences;
    layer.attention.heads = kHeads;
    layer.attention.kv_heads = kKvHeads;
    layer.attention.rows = layer.attention.new_rows = rows;
    layer.attention.pages = {nullptr, kSequences, kCapacity, 1};
    layer.attention.head_size = kHead;
    layer.attention.scale = 0.25f;
    return layer;
  }

  // y = x + multiplier * norm(f(x') W + bias), by the single parts.
  std::vector<float> add_times(const dart::Matrix& matrix, const std::vector<float>& read,
                               const dart::Norm& after, float multiplier,
                               const std::vector<float>& residual, Instructions instructions) const {
    const bool plain = after.scale == nullptr && multiplier == 1;
    std::vector<float> made = times(matrix, read, plain ? residual.data() : nullptr, instructions);
    if (plain) return made;
    if (after.scale != nullptr) {
      std::vector<float> normed(made.size());
      dart::normalize(after, made.data(), made.size() / kWidth, normed.data(), instructions);
      made = normed;
    }
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = residual[i] + made[i] * multiplier;
    return made;
  }

  std::vector<float> times(const dart::Matrix& matrix, const std::vector<float>& read,
                           const float* residual, Instructions instructions) const {
    const std::size_t count = kSequences * rows;
    std::vector<dart::Int8Inputs> rounded(count * dart::groups_of(matrix.in));
    dart::quantize(read.data(), count, matrix.in, rounded.data(), instructions);
    std::vector<float> y(count * matrix.out);
    std::size_t first = 0;
    for (const dart::Matrix::Part& part : matrix.parts) {
      dart::PackedProduct product{read.data(), part.tiles, y.data() + first, count, matrix.in,
                                  part.out,    matrix.out, part.type};
      product.quantized = rounded.data();
      product.bias = matrix.bias + first;
      if (residual != nullptr) product.residual = residual + first;
      dart::multiply(&product, 1, instructions, std::size_t{1});
      first += part.out;
    }
    return y;
  }

  std::vector<float> normed(const dart::Norm& norm, const std::vector<float>& read,
                            Instructions instructions) const {
    std::vector<float> y(read.size());
    dart::normalize(norm, read.data(), read.size() / kWidth, y.data(), instructions);
    return y;
  }

  // What follows y are keys and values.
  std::vector<float> expected(Instructions instructions) const {
    const std::size_t count = kSequences * rows;
    std::vector<float> new_k(count * kKvHeads * kHead), new_v(new_k.size());
    const dart::Layer layer = this->layer(nullptr, nullptr, nullptr, rows);
    const std::vector<float> made =
        times(qkv, normed(layer.before_attention, x, instructions), nullptr, instructions);
    std::vector<float> q(count * kHeads * kHead), attended(q.size());
    dart::Heads heads = layer.heads;
    heads.x = made.data();
    heads.q = q.data();
    heads.k = new_k.data();
    heads.v = new_v.data();
    dart::rotate_heads(heads, instructions);
    dart::Attention attention = layer.attention;
    attention.q = q.data();
    attention.new_k = new_k.data();
    attention.new_v = new_v.data();
    attention.out = attended.data();
    dart::attend(attention, instructions, std::size_t{1});
    const std::vector<float> middle = add_times(out, attended, layer.after.after_attention,
                                                layer.after.multiplier, x, instructions);
    const std::vector<float> both =
        times(gate_up, normed(layer.after.before_mlp, middle, instructions), nullptr, instructions);
    std::vector<float> gated(count * kHidden);
    dart::gate(layer.after.activation, both.data(), count, kHidden, gated.data(), instructions);
    std::vector<float> y =
        add_times(down, gated, layer.after.after_mlp, layer.after.multiplier, middle, instructions);
    y.insert(y.end(), new_k.begin(), new_k.end());
    y.insert(y.end(), new_v.begin(), new_v.end());
    return y;
  }

  std::size_t rows;
  bool norms_after;
  WeightType type;
  std::vector<float> x, scales, cos, sin, k, v;
  std::vector<char> mask;
  std::int32_t lengths[kSequences] = {kCached, 3};
  dart::Matrix qkv, out, gate_up, down, draft_q, draft_kv;
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<std::uint8_t>> bytes;
};

void test_parts() {
  for (bool norms_after : {false, true}) {
    for (WeightType type : {WeightType::kFloat32, WeightType::kQ8_0}) {
      for (std::size_t rows : {1, 3, 20}) {
        const Problem problem(rows, norms_after, type);
        for (Instructions instructions : supported()) {
          const std::vector<float> expected = problem.expected(instructions);
          const std::size_t size = kSequences * rows * kWidth, made = kSequences * rows * kKvHeads * kHead;
          for (std::size_t threads : {1, 2, 5}) {
            std::vector<float> found(size + 2 * made);
            float* const new_k = found.data() + size;
            const dart::Layer layer = problem.layer(found.data(), new_k, new_k + made, rows);
            dart::run({&layer, 1}, instructions, threads);
            CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
          }
        }
      }
    }
  }
}

// Keys and values in bfloat16, and with more room than rows: as in float32, rounded.
void test_kept_rows() {
  constexpr std::size_t kRows = 5, kRoom = 7;
  const Problem problem(kRows, false, WeightType::kQ8_0);
  for (Instructions instructions : supported()) {
    std::vector<float> y(kRows * kWidth), exact_k(kKvHeads * kRows * kHead), exact_v(exact_k.size());
    dart::Layer layer = problem.layer(y.data(), exact_k.data(), exact_v.data(), kRows);
    layer.heads.sequences = layer.attention.sequences = layer.attention.pages.count = 1;
    dart::run({&layer, 1}, instructions, 1);
    std::vector<float> again(y.size()), room_k(kKvHeads * kRoom * kHead, -1), room_v(room_k);
    layer.y = again.data();
    layer.new_rows = {room_k.data(), room_v.data(), kRoom};
    dart::run({&layer, 1}, instructions, 1);
    CHECK(again == y);
    std::vector<std::uint16_t> halves_k(exact_k.size()), halves_v(exact_k.size());
    std::vector<std::uint16_t> cached(2 * problem.k.size());
    layer.attention.k = layer.attention.v = cached.data();
    layer.attention.bfloat16 = true;
    layer.new_rows = {halves_k.data(), halves_v.data(), kRows};
    dart::run({&layer, 1}, instructions, 1);
    for (std::size_t head = 0; head < kKvHeads; ++head) {
      for (std::size_t i = 0; i < kRoom * kHead; ++i) {
        const std::size_t at = head * kRows * kHead + i, room = head * kRoom * kHead + i;
        if (i >= kRows * kHead) {
          CHECK(room_k[room] == -1 && room_v[room] == -1);
          continue;
        }
        CHECK(room_k[room] == exact_k[at] && room_v[room] == exact_v[at]);
        for (const auto& [half, exact] :
             {std::pair{halves_k[at], exact_k[at]}, std::pair{halves_v[at], exact_v[at]}}) {
          std::uint32_t bits = std::uint32_t{half} << 16;
          float rounded;
          std::memcpy(&rounded, &bits, sizeof rounded);
          CHECK(std::fabs(rounded - exact) <= std::fabs(exact) / 256);
        }
      }
    }
  }
}

struct Drafted {
  std::vector<float> y, k, v;
};

Drafted draft(const Problem& problem, std::size_t real, std::size_t masks,
              Instructions instructions, std::size_t threads, std::size_t window = 0) {
  Drafted made{std::vector<float>(kSequences * (1 + masks) * kWidth),
               std::vector<float>(kSequences * kKvHeads * real * kHead), {}};
  made.v = made.k;
  const std::vector<float> embeds = random_floats(kSequences * real * kWidth, 11);
  const std::vector<float> mask_row = random_floats(2 * kWidth, 12);
  const std::int32_t last[kSequences] = {static_cast<std::int32_t>(real) - 1, 0};
  const dart::Layer ordinary = problem.layer(nullptr, nullptr, nullptr, real);
  dart::DraftLayer layer{};
  layer.embeds = embeds.data();
  layer.residual = problem.x.data();
  layer.mask_row = mask_row.data();
  layer.last = last;
  layer.y = made.y.data();
  layer.masks = masks;
  layer.window = window;
  layer.embeds_norm = problem.norm(0, true);
  layer.residual_norm = problem.norm(1, true);
  layer.q = problem.draft_q;
  layer.kv = problem.draft_kv;
  layer.after = ordinary.after;
  layer.new_rows = {made.k.data(), made.v.data(), real};
  layer.heads = ordinary.heads;
  layer.heads.q_scale = layer.heads.k_scale = nullptr;
  layer.heads.rows = real + masks;
  layer.attention = ordinary.attention;
  dart::run(layer, instructions, threads);
  return made;
}

// The bits of a draft layer are the same with any threads; see also tests/models/test_drafter.py.
void test_draft_layer() {
  constexpr std::size_t kReal = 9, kMasks = 3;
  const Problem problem(kReal + kMasks, false, WeightType::kQ8_0);
  for (Instructions instructions : supported()) {
    const Drafted one = draft(problem, kReal, kMasks, instructions, 1);
    for (std::size_t threads : {2, 5}) {
      const Drafted more = draft(problem, kReal, kMasks, instructions, threads);
      CHECK(more.y == one.y && more.k == one.k && more.v == one.v);
    }
    for (std::size_t window : {1, 2, 5, 100}) {
      const Drafted narrow = draft(problem, kReal, kMasks, instructions, 2, window);
      CHECK((narrow.y == one.y) == (window == 100) && narrow.k == one.k);
      for (float value : narrow.y) CHECK(std::isfinite(value));
    }
    bool finite = true;
    for (float value : one.y) finite &= std::isfinite(value);
    CHECK(finite);
  }
}

}  // namespace

int main() {
  test_parts();
  test_kept_rows();
  test_draft_layer();
  return failures == 0 ? 0 : 1;
}
