#include "dart/reference_trie.h"

#include <algorithm>
#include <stdexcept>

#include "dart/bits.h"

namespace dart {
namespace {

constexpr std::uint64_t kRecordBytes = 24;
constexpr std::uint64_t kChildBytes = 12;
constexpr std::uint64_t kMinOrder = 2;
constexpr std::uint64_t kMaxTrieOrder = 5;
// An automaton built from a trie has three more fields per node, 12 bytes in total.
constexpr std::uint64_t kAutomatonBytes = 12;

// No file has more nodes; with this limit, sizes computed from them do not overflow.
constexpr std::uint64_t kMaxNodes = std::uint64_t{1} << 48;

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Hashes one edge. Sums of these hashes identify sets of edges.
std::uint64_t edge_hash(std::uint64_t parent, std::uint64_t child, std::int32_t token) {
  return mix(mix(parent * 0x9E3779B97F4A7C15 + static_cast<std::uint32_t>(token)) + child);
}

// The size of a file: every node except the root is a child of exactly one node.
std::uint64_t file_bytes(std::uint64_t nodes) {
  return ReferenceTrieParser::kHeaderBytes + nodes * kRecordBytes + (nodes - 1) * kChildBytes;
}

}  // namespace

ReferenceTrieParser::ReferenceTrieParser(Span<std::uint8_t> header, std::uint64_t file_size,
                                         std::int32_t vocab_size)
    : order_(0), nodes_(0), vocab_size_(vocab_size) {
  if (header.size < kHeaderBytes) {
    throw std::invalid_argument("is not an n-gram trie of the reference: it has only " +
                                std::to_string(file_size) + " bytes");
  }
  const auto order = load<std::uint64_t>(header.data);
  nodes_ = load<std::uint64_t>(header.data + 8);
  if (order == 0 || order > 255 || nodes_ == 0 || nodes_ > kMaxNodes) {
    throw std::invalid_argument("is not an n-gram trie of the reference");
  }
  if (file_size == file_bytes(nodes_) + nodes_ * kAutomatonBytes) {
    throw std::invalid_argument(
        "is an automaton (.aca), not a trie: convert the .trie file it was made from");
  }
  if (order < kMinOrder || order > kMaxTrieOrder) {
    throw std::invalid_argument("holds n-grams of up to " + std::to_string(order) +
                                " tokens; 2 to 5 can be converted");
  }
  if (file_size < file_bytes(nodes_)) {
    throw std::invalid_argument("is truncated at byte " + std::to_string(file_size) + ": its " +
                                std::to_string(nodes_) + " nodes take " +
                                std::to_string(file_bytes(nodes_)) + " bytes; fetch it again");
  }
  if (file_size > file_bytes(nodes_)) {
    throw std::invalid_argument("is not an n-gram trie of the reference, or damaged: it has " +
                                std::to_string(file_size) + " bytes, but " +
                                std::to_string(nodes_) + " nodes take " +
                                std::to_string(file_bytes(nodes_)));
  }
  order_ = static_cast<int>(order);
}

void ReferenceTrieParser::feed(Span<std::uint8_t> bytes, ReferenceNodes* leaves,
                               ReferenceNodes* inner) {
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  const std::uint8_t* next = pending_.data();
  const std::uint8_t* const end = next + pending_.size();
  while (static_cast<std::uint64_t>(end - next) >= kRecordBytes) {
    const auto token = load<std::int32_t>(next);
    const auto parent = load<std::uint64_t>(next + 4);
    const auto count = load<std::int32_t>(next + 12);
    const auto children = load<std::uint64_t>(next + 16);
    if (id_ == nodes_) refuse("follows the last one");
    if (id_ > 0) {
      if (token < 0 || token >= vocab_size_) {
        refuse("has token " + std::to_string(token) + ", which is outside the vocabulary of " +
               std::to_string(vocab_size_));
      }
      if (parent >= nodes_ || parent == id_) {
        refuse("names node " + std::to_string(parent) + " as its parent");
      }
      if (count < 0) {
        refuse("has the count " + std::to_string(count) +
               ": it overflowed when the trie was made, from too large a corpus");
      }
    }
    // This check also bounds the size of pending_.
    if (children > nodes_ - 1 - listed_ || children > static_cast<std::uint64_t>(vocab_size_)) {
      refuse("lists " + std::to_string(children) + " children");
    }
    const std::uint64_t record = kRecordBytes + children * kChildBytes;
    if (static_cast<std::uint64_t>(end - next) < record) break;

    read_children(next + kRecordBytes, children);
    if (id_ > 0) {
      edges_ -= edge_hash(parent, id_, token);
      ReferenceNodes* nodes = children == 0 ? leaves : inner;
      if (children > 0) nodes->id.push_back(id_);
      nodes->parent.push_back(parent);
      nodes->token.push_back(token);
      nodes->count.push_back(count);
    }
    listed_ += children;
    ++id_;
    next += record;
    offset_ += record;
  }
  pending_.erase(pending_.begin(), pending_.end() - (end - next));
}

void ReferenceTrieParser::finish() const {
  if (id_ != nodes_ || !pending_.empty()) {
    throw std::invalid_argument("ended after " + std::to_string(id_) + " of " +
                                std::to_string(nodes_) + " nodes: did it change meanwhile?");
  }
  if (edges_ != 0) {
    throw std::invalid_argument(
        "is damaged: the children that its nodes list are not those that name them as parent");
  }
}

void ReferenceTrieParser::read_children(const std::uint8_t* first, std::uint64_t children) {
  tokens_.clear();
  for (std::uint64_t i = 0; i < children; ++i) {
    const auto token = load<std::int32_t>(first + i * kChildBytes);
    const auto child = load<std::uint64_t>(first + i * kChildBytes + 4);
    edges_ += edge_hash(id_, child, token);
    tokens_.push_back(token);
  }
  std::sort(tokens_.begin(), tokens_.end());
  const auto twice = std::adjacent_find(tokens_.begin(), tokens_.end());
  if (twice != tokens_.end()) {
    refuse("lists two children with token " + std::to_string(*twice));
  }
}

void ReferenceTrieParser::refuse(const std::string& problem) const {
  throw std::invalid_argument("is damaged, or no n-gram trie: node " + std::to_string(id_) +
                              ", at byte " + std::to_string(offset_) + ", " + problem);
}

}  // namespace dart
