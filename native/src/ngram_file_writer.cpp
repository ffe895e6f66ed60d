#include "dart/ngram_file_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "dart/bits.h"
#include "dart/xxh64.h"

namespace dart {
namespace {

using format::kChunk;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(std::string("n-gram file: ") + message);
}

[[noreturn]] void throw_write_error() { throw std::runtime_error(std::strerror(errno)); }

// A section of the file while it grows: bits in, bytes with their checksum out.
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

  // The finished section.
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

// A range of one level.
struct Range {
  std::int64_t begin;
  std::int64_t end;

  std::uint64_t size() const { return static_cast<std::uint64_t>(end - begin); }
};

// Encodes the lists below one n-gram of one token.
class ListWriter {
 public:
  ListWriter(const std::vector<NgramLevel>& levels, const NgramFileOptions& options,
             std::uint64_t smallest)
      : ends_bigram(options.vocab_size),
        levels_(levels),
        options_(options),
        smallest_(smallest),
        depths_(levels.size()) {}

  std::array<std::uint64_t, kMaxOrder> written{};
  std::vector<bool> ends_bigram;  // tokens that a bigram written ends in
  std::size_t gathered = 0;       // n-grams read

  // Appends the list of an n-gram to `out`; nothing if nothing followed it.
  //
  // Args:
  //   n: the length of the list's n-grams, 2 .. order.
  //   children: them, in level n.
  //   code: of the count of the n-gram they extend.
  //   suffixes: the children, in level n - 1, of that n-gram without its first token; at n = 2 all
  //     of level 1.
  void write(int n, Range children, std::uint64_t code, Range suffixes, BitWriter* out) {
    Depth& depth = depths_[n - 1];
    const bool inner = n < static_cast<int>(levels_.size());
    const std::uint64_t universe = gather(n, children, suffixes, &depth);
    const std::size_t size = depth.position.size();
    if (size == 0) return;
    written[n - 1] += size;

    depth.length.assign(size, 0);
    depth.children.clear();
    if (inner) {
      for (std::size_t i = 0; i < size; ++i) {
        const std::uint64_t before = depth.children.size();
        // The suffix of the child is as long as its parent; its children are the universe of the
        // child's.
        const std::int64_t suffix = depth.suffix[i];
        const auto& bound = levels_[n - 2].child_begin;
        write(n + 1, children_of(n, depth.node[i]), depth.code[i] + smallest_,
              {bound[suffix], bound[suffix + 1]}, &depth.children);
        depth.length[i] = depth.children.size() - before;
      }
    }

    const std::uint64_t bound = code - smallest_;
    const unsigned index_bits = format::index_bits(universe);
    if (bound == 0 && smallest_ == 1) {
      out->append(depth.position[0], index_bits);
    } else if (size <= kChunk) {
      write_short(depth, bound, index_bits, inner, out);
    } else {
      write_long(depth, bound, universe, inner, out);
    }
    if (inner) out->append(depth.children);
  }

  // Whether the n-gram of length n has been counted often enough.
  bool keeps(int n, std::int64_t node) const {
    return static_cast<std::uint64_t>(levels_[n - 1].count[node]) >= options_.min_count[n - 1];
  }

 private:
  // What is known of the entries of the list being written at one depth.
  struct Depth {
    std::vector<std::uint64_t> position;  // in the universe
    std::vector<std::uint64_t> code;      // of the count, less the smallest count
    std::vector<std::uint64_t> length;    // bits of the entry's own list
    std::vector<std::int64_t> node;       // in level n
    std::vector<std::int64_t> suffix;     // in level n - 1
    BitWriter children;
    BitWriter chunks;
  };

  Range children_of(int n, std::int64_t node) const {
    const auto& bound = levels_[n - 1].child_begin;
    return {bound[node], bound[node + 1]};
  }

  // Fills the entries' positions, codes, nodes and suffixes. Returns the size of the universe.
  std::uint64_t gather(int n, Range children, Range suffixes, Depth* depth) {
    depth->position.clear();
    depth->code.clear();
    depth->node.clear();
    depth->suffix.clear();
    gathered += static_cast<std::size_t>(children.size());
    const auto& tokens = levels_[n - 1].token;
    const auto& suffix_tokens = levels_[n - 2].token;
    std::int64_t suffix = suffixes.begin;
    std::uint64_t kept_before = 0;  // of the suffixes
    for (std::int64_t node = children.begin; node < children.end; ++node) {
      if (!keeps(n, node)) continue;
      if (n == 2) {
        // The universe of level 2 is the vocabulary itself.
        suffix = find(suffix_tokens, suffix, suffixes.end, tokens[node]);
        kept_before = static_cast<std::uint64_t>(tokens[node]);
      } else {
        const std::int64_t from = suffix;
        suffix = find(suffix_tokens, suffix, suffixes.end, tokens[node]);
        kept_before += kept(n - 1, from, suffix);
      }
      require(suffix < suffixes.end && suffix_tokens[suffix] == tokens[node] &&
                  keeps(n - 1, suffix),
              "an n-gram without a shorter one that it ends in: these are not counts of a corpus");
      if (n == 2) ends_bigram[kept_before] = true;
      depth->position.push_back(kept_before);
      depth->code.push_back(
          format::encode_count(static_cast<std::uint64_t>(levels_[n - 1].count[node]),
                               options_.precision) -
          smallest_);
      depth->node.push_back(node);
      depth->suffix.push_back(suffix);
    }
    if (n == 2) return options_.vocab_size;
    return kept_before + kept(n - 1, suffix, suffixes.end);
  }

  // How many of the n-grams of a range are kept.
  std::uint64_t kept(int n, std::int64_t begin, std::int64_t end) const {
    if (options_.min_count[n - 1] <= smallest_) return static_cast<std::uint64_t>(end - begin);
    std::uint64_t count = 0;
    for (; begin < end; ++begin) count += keeps(n, begin);
    return count;
  }

  // The first place in [begin, end) whose token is not smaller. Near to `begin` it is found fast.
  static std::int64_t find(const Span<std::int32_t>& tokens, std::int64_t begin, std::int64_t end,
                           std::int32_t token) {
    std::int64_t step = 1;
    while (begin + step < end && tokens[begin + step] < token) {
      begin += step;
      step *= 2;
    }
    const std::int32_t* first = tokens.data + begin;
    const std::int32_t* last = tokens.data + std::min(begin + step + 1, end);
    return std::lower_bound(first, last, token) - tokens.data;
  }

  static unsigned width(const std::vector<std::uint64_t>& values, std::size_t begin,
                        std::size_t end) {
    std::uint64_t all = 0;
    for (std::size_t i = begin; i < end; ++i) all |= values[i];
    return bit_length(all);
  }

  static void append(const std::vector<std::uint64_t>& values, std::size_t begin, std::size_t end,
                     unsigned width, BitWriter* out) {
    for (std::size_t i = begin; i < end; ++i) out->append(values[i], width);
  }

  static void write_short(const Depth& depth, std::uint64_t bound, unsigned index_bits, bool inner,
                          BitWriter* out) {
    const std::size_t size = depth.position.size();
    const unsigned code_bits = width(depth.code, 0, size);
    const unsigned length_bits = width(depth.length, 0, size);
    out->append(0, 1);
    out->append(code_bits, bit_length(bit_length(bound)));
    if (inner) {
      out->append(size - 1, 4);
      out->append(length_bits, 6);
    }
    append(depth.position, 0, size, index_bits, out);
    append(depth.code, 0, size, code_bits, out);
    append(depth.length, 0, size, length_bits, out);
  }

  static void write_long(Depth& depth, std::uint64_t bound, std::uint64_t universe, bool inner,
                         BitWriter* out) {
    const std::size_t size = depth.position.size();
    const std::size_t chunks = (size + kChunk - 1) / kChunk;
    std::vector<std::uint64_t> first(chunks);
    std::vector<std::uint64_t> offset(chunks);  // of the chunk, from the first chunk
    std::vector<std::uint64_t> base(chunks);    // of its first entry's list, from the first one's
    depth.chunks.clear();
    std::uint64_t child = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
      const std::size_t begin = c * kChunk;
      const std::size_t end = std::min(begin + kChunk, size);
      first[c] = depth.position[begin];
      offset[c] = depth.chunks.size();
      base[c] = child;
      const unsigned index_bits = bit_length(depth.position[end - 1] - first[c]);
      const unsigned code_bits = width(depth.code, begin, end);
      const unsigned length_bits = width(depth.length, begin, end);
      depth.chunks.append(index_bits, 5);
      depth.chunks.append(code_bits, bit_length(bit_length(bound)));
      if (inner) depth.chunks.append(length_bits, 6);
      for (std::size_t i = begin + 1; i < end; ++i) {
        depth.chunks.append(depth.position[i] - first[c], index_bits);
      }
      append(depth.code, begin, end, code_bits, &depth.chunks);
      append(depth.length, begin, end, length_bits, &depth.chunks);
      for (std::size_t i = begin; i < end; ++i) child += depth.length[i];
    }

    // Both kinds of offset count from the list's own beginning, and so include the header whose
    // length depends on how wide they are.
    const unsigned index_bits = format::index_bits(universe);
    unsigned offset_bits = 0;
    unsigned base_bits = 0;
    std::uint64_t header = 0;
    for (;;) {
      header = 1 + bit_length(universe) + 6 + (inner ? 6 : 0) +
               chunks * (std::uint64_t{index_bits} + offset_bits + base_bits);
      const unsigned wider_offset = bit_length(header + offset[chunks - 1]);
      const unsigned wider_base =
          inner ? bit_length(header + depth.chunks.size() + base[chunks - 1]) : 0;
      if (wider_offset <= offset_bits && wider_base <= base_bits) break;
      offset_bits = std::max(offset_bits, wider_offset);
      base_bits = std::max(base_bits, wider_base);
    }
    if (base_bits > kMaxFieldBits) throw std::length_error("n-gram file: too much after one token");

    out->append(1, 1);
    out->append(size, bit_length(universe));
    out->append(offset_bits, 6);
    if (inner) out->append(base_bits, 6);
    for (std::size_t c = 0; c < chunks; ++c) {
      out->append(first[c], index_bits);
      out->append(header + offset[c], offset_bits);
      if (inner) out->append(header + depth.chunks.size() + base[c], base_bits);
    }
    out->append(depth.chunks);
  }

  const std::vector<NgramLevel>& levels_;
  const NgramFileOptions& options_;
  const std::uint64_t smallest_;
  std::vector<Depth> depths_;
};

// After so many n-grams the pages that were read are let go of.
constexpr std::size_t kReleased = std::size_t{1} << 20;

std::uint64_t smallest_count(const std::vector<NgramLevel>& levels,
                             const std::function<void()>& release) {
  for (std::size_t n = 1; n < levels.size(); ++n) {
    const auto& count = levels[n].count;
    for (std::size_t i = 0; i < count.size; ++i) {
      if (count[i] == 0) return 0;
      if (i % kReleased == 0) release();
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
          "a model that already lost counts cannot lose more; give no minimum counts");

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

  // The lists, token by token, and where each begins.
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
    if (writer.gathered - released >= kReleased) {
      released = writer.gathered;
      release();
    }
  }
  offset[options.vocab_size] = lists.bits();
  for (std::uint64_t token = 0; token < options.vocab_size; ++token) {
    // A token counted 0 times that is in no longer n-gram is as if it was not there.
    writer.written[0] += code[token] != 0 || offset[token] < offset[token + 1] ||
                         writer.ends_bigram[token];
  }
  header.list_bits = lists.bits();
  header.lists = lists.finish();
  for (std::size_t n = 0; n < levels.size(); ++n) {
    header.ngrams[n] = writer.written[n];
    if (n > 0) header.dropped[n] = levels[n].token.size - writer.written[n];
  }
  // Counted one by one: a token that was counted 0 times and is not there is no loss.
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
