#include "dart/xxh64.h"

#include <algorithm>
#include <cstring>

#include "dart/bits.h"

namespace dart {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5;

std::uint64_t rotate(std::uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
  return rotate(lane + input * kPrime2, 31) * kPrime1;
}

}  // namespace

void Xxh64::update(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  size_ += size;
  if (pending_size_ > 0) {
    const std::size_t taken = std::min(size, kStripe - pending_size_);
    std::memcpy(pending_.data() + pending_size_, bytes, taken);
    pending_size_ += taken;
    bytes += taken;
    size -= taken;
    if (pending_size_ < kStripe) return;
    for (int i = 0; i < 4; ++i) lanes_[i] = round(lanes_[i], load<std::uint64_t>(&pending_[8 * i]));
    pending_size_ = 0;
  }
  std::array<std::uint64_t, 4> lanes = lanes_;
  for (; size >= kStripe; bytes += kStripe, size -= kStripe) {
    for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], load<std::uint64_t>(bytes + 8 * i));
  }
  lanes_ = lanes;
  if (size > 0) std::memcpy(pending_.data(), bytes, size);
  pending_size_ = size;
}

std::uint64_t Xxh64::digest() const {
  std::uint64_t hash = kPrime5;
  if (size_ >= kStripe) {
    hash = rotate(lanes_[0], 1) + rotate(lanes_[1], 7) + rotate(lanes_[2], 12) +
           rotate(lanes_[3], 18);
    for (std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += size_;
  const std::uint8_t* rest = pending_.data();
  std::size_t left = pending_size_;
  for (; left >= 8; rest += 8, left -= 8) {
    hash = rotate(hash ^ round(0, load<std::uint64_t>(rest)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = rotate(hash ^ (load<std::uint32_t>(rest) * kPrime1), 23) * kPrime2 + kPrime3;
    rest += 4;
    left -= 4;
  }
  for (; left > 0; ++rest, --left) hash = rotate(hash ^ (*rest * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace dart
