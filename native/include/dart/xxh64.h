// XXH64 with seed 0, the checksum of a file's sections, as specified in
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. Not cryptographic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dart {

class Xxh64 {
 public:
  // Hashes the next bytes.
  void update(const void* data, std::size_t size);

  // Returns the checksum of all bytes so far.
  std::uint64_t digest() const;

 private:
  static constexpr std::size_t kStripe = 32;

  std::array<std::uint64_t, 4> lanes_ = {0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0,
                                         0x61C8864E7A143579};
  std::array<std::uint8_t, kStripe> pending_{};
  std::size_t pending_size_ = 0;
  std::uint64_t size_ = 0;
};

inline std::uint64_t xxh64(const void* data, std::size_t size) {
  Xxh64 hash;
  hash.update(data, size);
  return hash.digest();
}

}  // namespace dart
