#include "dart/ngram_file_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "dart/bits.h"
#include "dart/xxh64.h"
#include "ngram_list_writer.h"
#include "require.h"

namespace dart {
namespace {

[[noreturn]] void throw_write_error() { throw std::runtime_error(std::strerror(errno)); }

// Writes a section of the file: bits in, bytes and their checksum out.
class SectionWriter {
 public:
  SectionWriter(std::FILE* out, std::uint64_t offset) : out_(out) { section_.offset = offset; }

  void append(const BitWriter& bits) {
    bits_.append(bits);
    if (bits_.size() >= kBuffered) flush();
  }
  void append(std::uint64_t value, unsigned width) {
    bits_.append(value, width);
    if (bits_.size() >= kBuffered) flush();
  }

  std::uint64_t bits() const { return 8 * section_.bytes + bits_.size(); }

  // Writes the rest and the padding; returns the finished section.
  format::Section finish() {
    bits_.align();
    bits_.append(0, 64);
    static_assert(format::kPadding == 8, "one word of padding");
    flush();
    section_.checksum = hash_.digest();
    return section_;
  }

 private:
  static constexpr std::uint64_t kBuffered = std::uint64_t{8} << 20;  // bits

  void flush() {
    bits_.take_words(&words_);
    const std::size_t bytes = words_.size() * sizeof words_[0];
    hash_.update(words_.data(), bytes);
    if (std::fwrite(words_.data(), 1, bytes, out_) != bytes) {
      throw_write_error();
    }
    section_.bytes += bytes;
  }

  std::FILE* out_;
  format::Section section_{};
  BitWriter bits_;
  std::vector<std::uint64_t> words_;
  Xxh64 hash_;
};

// Pages that were read are released after this many n-grams.
constexpr std::size_t kReleaseInterval = std::size_t{1} << 20;

std::uint64_t smallest_count(const std::vector<NgramLevel>& levels,
                             const std::function<void()>& release) {
  for (std::size_t n = 1; n < levels.size(); ++n) {
    const auto& count = levels[n].count;
    for (std::size_t i = 0; i < count.size; ++i) {
      if (count[i] == 0) return 0;
      if (i % kReleaseInterval == 0) release();
    }
  }
  return 1;
}

}  // namespace

void write_ngram_file(const std::vector<NgramLevel>& levels, const NgramFileOptions& options,
                      std::FILE* out, const std::function<void()>& release) {
  require(std::is_sorted(options.min_count.begin(), options.min_count.begin() + levels.size()),
          "minimum counts must not descend");
  require(options.precision == format::kExact || (options.precision >= format::kMinPrecision &&
                                                  options.precision <= format::kMaxPrecision),
          "precision must be 2 to 16 bits");
  const std::uint64_t smallest = smallest_count(levels, release);
  require(smallest == 1 || options.min_count[levels.size() - 1] == 0,
          "the model has already lost counts; give no minimum counts");

  format::Header header{};
  std::memcpy(header.magic, format::kMagic, sizeof header.magic);
  header.version = format::kVersion;
  header.bytes = sizeof header;
  header.order = static_cast<std::uint32_t>(levels.size());
  header.precision = options.precision;
  header.vocab_size = options.vocab_size;
  header.smallest = smallest;
  std::copy(options.min_count.begin(), options.min_count.end(), header.min_count);
  std::copy(options.fingerprint.begin(), options.fingerprint.end(), header.fingerprint);

  const auto put_header = [&] {
    if (std::fseek(out, 0, SEEK_SET) != 0 || std::fwrite(&header, sizeof header, 1, out) != 1) {
      throw_write_error();
    }
  };
  put_header();

  // The lists, token by token, and the offset of each.
  const NgramLevel& unigrams = levels.front();
  ListWriter writer(levels, options, smallest);
  SectionWriter lists(out, sizeof header);
  std::vector<std::uint64_t> code(options.vocab_size + 1);
  std::vector<std::uint64_t> offset(options.vocab_size + 1);
  BitWriter bits;
  std::size_t next = 0;
  std::size_t released = 0;
  for (std::uint64_t token = 0; token < options.vocab_size; ++token) {
    offset[token] = lists.bits();
    if (next == unigrams.token.size || static_cast<std::uint64_t>(unigrams.token[next]) != token) {
      continue;
    }
    const auto node = static_cast<std::int64_t>(next++);
    require(unigrams.count[node] >> kMaxFieldBits == 0, "a count is too large");
    header.tokens += static_cast<std::uint64_t>(unigrams.count[node]);
    if (!writer.keeps(1, node)) continue;
    code[token] = format::encode_count(static_cast<std::uint64_t>(unigrams.count[node]),
                                       options.precision);
    bits.clear();
    if (levels.size() > 1) {
      const auto& bound = unigrams.child_begin;
      writer.write(2, {bound[node], bound[node + 1]}, code[token],
                   {0, static_cast<std::int64_t>(unigrams.token.size)}, &bits);
    }
    lists.append(bits);
    if (writer.gathered - released >= kReleaseInterval) {
      released = writer.gathered;
      release();
    }
  }
  offset[options.vocab_size] = lists.bits();
  for (std::uint64_t token = 0; token < options.vocab_size; ++token) {
    // A token counted 0 times that occurs in no longer n-gram does not count as a unigram.
    writer.written[0] += code[token] != 0 || offset[token] < offset[token + 1] ||
                         writer.ends_bigram[token];
  }
  header.list_bits = lists.bits();
  header.lists = lists.finish();
  for (std::size_t n = 0; n < levels.size(); ++n) {
    header.ngrams[n] = writer.written[n];
    if (n > 0) header.dropped[n] = levels[n].token.size - writer.written[n];
  }
  // Counted one by one: an absent token that was counted 0 times is no loss.
  for (std::int64_t count : unigrams.count) {
    header.dropped[0] += static_cast<std::uint64_t>(count) < options.min_count[0];
  }

  header.unigram_count_bits = bit_length(*std::max_element(code.begin(), code.end()));
  header.unigram_offset_bits = bit_length(header.list_bits);
  SectionWriter table(out, header.lists.offset + header.lists.bytes);
  for (std::uint64_t token = 0; token <= options.vocab_size; ++token) {
    table.append(code[token], header.unigram_count_bits);
    table.append(offset[token], header.unigram_offset_bits);
  }
  header.unigrams = table.finish();
  header.checksum = xxh64(&header, offsetof(format::Header, checksum));
  put_header();
  if (std::fflush(out) != 0) throw_write_error();
}

}  // namespace dart
