#include "ngram_list_writer.h"

#include <algorithm>
#include <stdexcept>

#include "dart/span.h"
#include "require.h"

namespace dart {
namespace {

using format::kChunk;

// Returns the first index in [begin, end) whose token is not smaller. Galloping search: fast if the
// result is close to `begin`.
std::int64_t find(const Span<std::int32_t>& tokens, std::int64_t begin, std::int64_t end,
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

unsigned width(const std::vector<std::uint64_t>& values, std::size_t begin, std::size_t end) {
  std::uint64_t all = 0;
  for (std::size_t i = begin; i < end; ++i) all |= values[i];
  return bit_length(all);
}

void append(const std::vector<std::uint64_t>& values, std::size_t begin, std::size_t end,
            unsigned width, BitWriter* out) {
  for (std::size_t i = begin; i < end; ++i) out->append(values[i], width);
}

}  // namespace

void ListWriter::write(int n, LevelRange children, std::uint64_t code, LevelRange suffixes,
                       BitWriter* out) {
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
      // The child's suffix is as long as its parent, and the suffix's children are the universe of
      // the child's list.
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

LevelRange ListWriter::children_of(int n, std::int64_t node) const {
  const auto& bound = levels_[n - 1].child_begin;
  return {bound[node], bound[node + 1]};
}

// Fills the entries' positions, codes, nodes and suffixes. Returns the size of the universe.
std::uint64_t ListWriter::gather(int n, LevelRange children, LevelRange suffixes, Depth* depth) {
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
            "the suffix of an n-gram is missing: these are not counts of a corpus");
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

// Returns how many n-grams of a range are kept.
std::uint64_t ListWriter::kept(int n, std::int64_t begin, std::int64_t end) const {
  if (options_.min_count[n - 1] <= smallest_) return static_cast<std::uint64_t>(end - begin);
  std::uint64_t count = 0;
  for (; begin < end; ++begin) count += keeps(n, begin);
  return count;
}

void ListWriter::write_short(const Depth& depth, std::uint64_t bound, unsigned index_bits,
                             bool inner, BitWriter* out) {
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

void ListWriter::write_long(Depth& depth, std::uint64_t bound, std::uint64_t universe, bool inner,
                            BitWriter* out) {
  const std::size_t size = depth.position.size();
  const std::size_t chunks = (size + kChunk - 1) / kChunk;
  std::vector<std::uint64_t> first(chunks);
  std::vector<std::uint64_t> offset(chunks);  // of the chunk, relative to the first chunk
  std::vector<std::uint64_t> base(chunks);    // of its first entry's list, likewise
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

  // Both kinds of offset are relative to the beginning of this list. They include the header, whose
  // length depends on their own widths.
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
  if (base_bits > kMaxFieldBits) throw std::length_error("too much after one token");

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

}  // namespace dart
