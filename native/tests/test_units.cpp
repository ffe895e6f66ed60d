// Bit strings, checksums and count codes.
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "dart/bits.h"
#include "dart/ngram_format.h"
#include "dart/xxh64.h"
#include "ngram_file.h"

namespace {

constexpr std::uint64_t kAll = ~std::uint64_t{0};

void test_bit_length() {
  CHECK(dart::bit_length(0) == 0);
  for (unsigned bit = 0; bit < 64; ++bit) {
    CHECK(dart::bit_length(std::uint64_t{1} << bit) == bit + 1);
    CHECK(dart::bit_length(kAll >> bit) == 64 - bit);
  }
}

void test_round_trip() {
  Numbers numbers(1);
  std::vector<std::uint64_t> values;
  std::vector<unsigned> widths;
  dart::BitWriter whole, first, second;
  for (int i = 0; i < 2000; ++i) {
    const unsigned width = numbers.below(dart::kMaxFieldBits + 1);
    const std::uint64_t value =
        width == 0 ? 0 : (std::uint64_t{numbers.below(1u << 31)} << 31 | numbers.below(1u << 31)) &
                             (kAll >> (64 - width));
    values.push_back(value);
    widths.push_back(width);
    whole.append(value, width);
    (i < 999 ? first : second).append(value, width);
  }
  first.append(second);
  CHECK(first.size() == whole.size());
  for (dart::BitWriter* writer : {&whole, &first}) {
    writer->align();
    CHECK(writer->size() % 64 == 0);
    writer->append(0, 64);
    std::vector<std::uint64_t> words;
    writer->take_words(&words);
    CHECK(writer->size() == 0);
    const auto* data = reinterpret_cast<const std::uint8_t*>(words.data());
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(dart::read_bits(data, at, widths[i]) == values[i]);
      at += widths[i];
    }
  }
}

void test_lowest_bit_first() {
  dart::BitWriter writer;
  writer.append(1, 1);
  writer.append(0, 0);
  writer.append(2, 3);
  writer.append(kAll, 64);
  CHECK(writer.size() == 68);
  writer.align();
  std::vector<std::uint64_t> words;
  writer.take_words(&words);
  CHECK((words == std::vector<std::uint64_t>{~std::uint64_t{0xf} | 0x5, 0xf}));
  writer.append(3, 2);
  writer.clear();
  CHECK(writer.size() == 0);
}

// Test vectors from the specification's own implementation, seed 0.
void test_xxh64() {
  const auto hash = [](const std::string& text) { return dart::xxh64(text.data(), text.size()); };
  CHECK(hash("") == 0xef46db3751d8e999);
  CHECK(hash("a") == 0xd24ec4f1a98c6e5b);
  CHECK(hash("abc") == 0x44bc2cf5ad770999);
  CHECK(hash("abcdefghijklmnopqrstuvwxyz") == 0xcfe1f278fa89835c);
  CHECK(hash("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") ==
        0xaaa46907d3047814);

  std::vector<std::uint8_t> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
  for (std::size_t step : {1, 5, 31, 32, 33, 64, 999}) {
    dart::Xxh64 parts;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      parts.update(bytes.data() + at, std::min(step, bytes.size() - at));
    }
    CHECK(parts.digest() == dart::xxh64(bytes.data(), bytes.size()));
    CHECK(parts.digest() == parts.digest());  // digest() does not change the state
  }
}

void test_codes() {
  using dart::format::decode_count;
  using dart::format::encode_count;
  for (std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, kAll >> 7}) {
    CHECK(encode_count(count, dart::format::kExact) == count);
    CHECK(decode_count(count, dart::format::kExact) == count);
  }
  for (std::uint32_t precision = dart::format::kMinPrecision;
       precision <= dart::format::kMaxPrecision; ++precision) {
    std::uint64_t code_before = 0;
    for (std::uint64_t count = 0; count < 70000; ++count) {
      const std::uint64_t code = encode_count(count, precision);
      const std::uint64_t kept = decode_count(code, precision);
      CHECK(code == code_before || code == code_before + 1);  // no code is left out
      code_before = code;
      const unsigned length = dart::bit_length(count);
      if (length <= precision) {
        CHECK(code == count && kept == count);
      } else {
        const std::uint64_t half = std::uint64_t{1} << (length - precision - 1);
        CHECK(kept <= count + half && count <= kept + half);
      }
      CHECK(encode_count(kept, precision) == code);
    }
    // Every code up to that of the largest count that a signed integer holds.
    const std::uint64_t last = encode_count(std::uint64_t{1} << 62, precision);
    std::uint64_t kept_before = 0;
    for (std::uint64_t code = 1; code <= last; ++code) {
      const std::uint64_t kept = decode_count(code, precision);
      CHECK(kept > kept_before && encode_count(kept, precision) == code);
      kept_before = kept;
    }
    CHECK(kept_before == std::uint64_t{1} << 62);
    // Codes of no count; the shift must not be too wide.
    CHECK(decode_count(kAll, precision) == kAll);
    CHECK(decode_count(kAll >> 7, precision) == kAll);
  }
}

void test_index_bits() {
  CHECK(dart::format::index_bits(0) == 1);
  CHECK(dart::format::index_bits(1) == 1);
  CHECK(dart::format::index_bits(2) == 1);
  CHECK(dart::format::index_bits(3) == 2);
  CHECK(dart::format::index_bits(4) == 2);
  CHECK(dart::format::index_bits(5) == 3);
  CHECK(dart::format::index_bits(dart::format::kMaxVocabulary) == 24);
}

}  // namespace

int main() {
  test_bit_length();
  test_round_trip();
  test_lowest_bit_first();
  test_xxh64();
  test_codes();
  test_index_bits();
  return failures == 0 ? 0 : 1;
}
