// Random batches, and their searches on the stub's device (stub_cuda_runtime.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "dart/cuda_search.h"
#include "dart/packed_search.h"
#include "dart/tree_search.h"
#include "stub_cuda_runtime.h"

using Numbers32 = std::vector<std::int32_t>;

inline constexpr std::int32_t kUnwritten = -7;

struct BatchSize {
  std::int64_t rows = 4;
  std::int64_t levels = 3;
  std::int64_t candidates = 5;
  bool pairs = false;
  bool draws = false;
};

// Drafts in arrays of their own, and the same packed as a program packs them.
class Batch {
 public:
  Batch(std::mt19937& random, const BatchSize& size) {
    const auto below = [&](std::uint32_t bound) { return std::int32_t(random() % bound); };
    layout.rows = size.rows;
    layout.levels = size.levels;
    layout.candidates = size.candidates;
    layout.context = 1 + below(4);
    layout.first = layout.context + below(3);
    const std::int64_t candidates = size.levels * size.candidates;
    if (size.pairs && size.levels > 0) {
      layout.pairs = (size.levels - 1) * size.candidates * size.candidates;
    }
    if (size.draws) layout.draws = std::int64_t(dart::kDraws);
    layout.width = layout.first + 2 * candidates + layout.pairs + layout.draws;
    for (std::int64_t row = 0; row < size.rows; ++row) {
      packed.insert(packed.end(), layout.first - layout.context, kUnwritten);
      add(&context_, layout.context, [&] { return below(30); });
      add(&tokens_, candidates, [&] { return below(30) - 1; });
      add(&logits_, candidates, [&] { return bits(float(below(100)) / 10); });
      add(&pairs_, layout.pairs, [&] { return bits(float(below(100)) / 10); });
      add(&draws_, layout.draws, [&, column = 0]() mutable {
        return column++ == 3 ? bits(float(below(3)) / 2) : below(1000);
      });
    }
  }

  // What the search makes of the arrays, without any packing.
  Numbers32 trees(const dart::TreeSearch& search) const {
    dart::DraftBatch batch;
    const auto count = [](std::int64_t number) { return static_cast<std::size_t>(number); };
    batch.rows = count(layout.rows);
    batch.context = batch.context_stride = count(layout.context);
    batch.levels = count(layout.levels);
    batch.candidates = count(layout.candidates);
    batch.tokens_stride = batch.logits_stride = count(layout.levels * layout.candidates);
    batch.context_tokens = context_.data();
    batch.tokens = tokens_.data();
    const std::vector<float> logits = floats(logits_), pairs = floats(pairs_);
    batch.logits = logits.data();
    if (layout.pairs != 0) batch.pairs = pairs.data();
    batch.pairs_stride = count(layout.pairs);
    if (layout.draws != 0) batch.draws = draws_.data();
    batch.draws_stride = count(layout.draws);
    Numbers32 out(batch.rows * 4 * count(search.config().nodes + 1), kUnwritten);
    search.search(batch, out.data());
    return out;
  }

  dart::PackedLayout layout;
  Numbers32 packed;

 private:
  static std::int32_t bits(float value) {
    std::int32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }

  static std::vector<float> floats(const Numbers32& bits) {
    std::vector<float> values(bits.size());
    if (!bits.empty()) std::memcpy(values.data(), bits.data(), 4 * bits.size());
    return values;
  }

  template <class Next>
  void add(Numbers32* part, std::int64_t size, Next next) {
    for (std::int64_t i = 0; i < size; ++i) {
      part->push_back(next());
      packed.push_back(part->back());
    }
  }

  Numbers32 context_, tokens_, logits_, pairs_, draws_;
};

// A batch on the device, with a place for its trees.
class DeviceBatch {
 public:
  DeviceBatch(std::int32_t handle, const Batch& batch, int nodes) : batch_(batch), nodes_(nodes) {
    size_ = static_cast<std::size_t>(batch.layout.rows) * 4 * static_cast<std::size_t>(nodes + 1);
    handle_ = stub::allocate(4);
    packed_ = stub::allocate(4 * batch.packed.size());
    trees_ = stub::allocate(4 * size_);
    stub::write(handle_, &handle, 4);
    if (!batch.packed.empty()) stub::write(packed_, batch.packed.data(), 4 * batch.packed.size());
    clear();
  }
  ~DeviceBatch() {
    for (void* memory : {handle_, packed_, trees_}) stub::release(memory);
  }
  DeviceBatch(const DeviceBatch&) = delete;

  dart::CudaSearch search() const {
    dart::CudaSearch search;
    search.layout = batch_.layout;
    search.nodes = nodes_;
    search.handle = static_cast<const std::int32_t*>(handle_);
    search.packed = static_cast<const std::int32_t*>(packed_);
    search.trees = static_cast<std::int32_t*>(trees_);
    return search;
  }

  void clear() {
    const Numbers32 unwritten = all(kUnwritten);
    if (size_ > 0) stub::write(trees_, unwritten.data(), 4 * size_);
  }

  Numbers32 trees() const {
    Numbers32 trees = all(kUnwritten);
    if (size_ > 0) stub::read(trees.data(), trees_, 4 * size_);
    return trees;
  }

  Numbers32 all(std::int32_t value) const { return Numbers32(size_, value); }

 private:
  const Batch& batch_;
  int nodes_;
  std::size_t size_;
  void *handle_, *packed_, *trees_;
};

// What enqueueing reports; empty if nothing.
inline std::string enqueue(void* stream, std::int64_t run, const DeviceBatch& batch) {
  try {
    dart::enqueue_search(stream, run, batch.search());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// A stream for the lifetime of this object.
class TestStream {
 public:
  TestStream() : stream_(stub::make_stream()) {}
  ~TestStream() { stub::end_stream(stream_); }
  TestStream(const TestStream&) = delete;
  operator void*() const { return stream_; }

 private:
  void* stream_;
};

inline dart::TreeSearchConfig config_of(int nodes, int threads = 1) {
  dart::TreeSearchConfig config;
  config.nodes = nodes;
  config.threads = threads;
  return config;
}

// An execution of a program that no other test has.
inline std::int64_t new_run() {
  static std::int64_t run = 1000;
  return ++run;
}
