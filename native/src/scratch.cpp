#include "dart/scratch.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

namespace dart {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kLeast = 1 << 16;  // bytes of a block
constexpr std::size_t kMuch = 16;        // times what a call takes

}  // namespace

Scratch::Block::Block(std::size_t size)
    : memory(static_cast<char*>(::operator new(size, std::align_val_t{kLine}))), size(size) {}

void Scratch::Block::Free::operator()(char* memory) const {
  ::operator delete(memory, std::align_val_t{kLine});
}

struct Scratch::Idle {
  std::mutex mutex;
  std::vector<Block> blocks;
};

// Never destroyed: a layer may still be computed while the process ends.
Scratch::Idle& Scratch::idle() {
  static Idle* const idle = new Idle;
  return *idle;
}

Scratch::Scratch() {
  const std::lock_guard<std::mutex> lock(idle().mutex);
  std::vector<Block>& blocks = idle().blocks;
  if (blocks.empty()) return;
  blocks_.push_back(std::move(blocks.back()));
  blocks.pop_back();
}

Scratch::~Scratch() {
  const bool fits = blocks_.size() == 1 && blocks_.front().size / kMuch <= std::max(most_, kLeast);
  try {
    if (!fits) {
      blocks_.clear();
      blocks_.emplace_back(std::max(most_, kLeast));
    }
    const std::lock_guard<std::mutex> lock(idle().mutex);
    idle().blocks.push_back(std::move(blocks_.front()));
  } catch (const std::bad_alloc&) {
    // The next call takes what it needs.
  }
}

void* Scratch::take_bytes(std::size_t bytes) {
  bytes = (bytes + kLine - 1) / kLine * kLine;
  std::size_t begin = 0;
  for (const Block& block : blocks_) {
    const std::size_t end = begin + block.size, from = std::max(used_, begin);
    if (from <= end && bytes <= end - from) {
      used_ = from + bytes;
      most_ = std::max(most_, used_);
      return block.memory.get() + (from - begin);
    }
    begin = end;
  }
  blocks_.emplace_back(std::max({bytes, begin, kLeast}));
  used_ = begin + bytes;
  most_ = std::max(most_, used_);
  return blocks_.back().memory.get();
}

}  // namespace dart
