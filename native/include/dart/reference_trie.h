// Reads the n-gram trie of the reference implementation, checking it, in one pass over its bytes.
//
// The file, little endian: u64 order, u64 nodes; then for each node i32 token, u64 parent, i32 count,
// u64 children, and for each child i32 token, u64 node. A node's id is the number of its record; node
// 0 is the root, whose own token, parent and count mean nothing. Ids and children are in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dart/span.h"

namespace dart {

// Nodes, in the order of their ids. A node is its parent's n-gram and one token more.
struct ReferenceNodes {
  std::vector<std::uint64_t> id;  // left empty for leaves, which no other node names
  std::vector<std::uint64_t> parent;
  std::vector<std::int32_t> token;
  std::vector<std::int32_t> count;
};

// Takes the file in consecutive pieces of any size, and keeps no more than the record that a piece
// ends in. In what it accepts, every node is listed by the node it names as its parent, and siblings
// differ in their tokens. It does not see whether the root reaches all of them.
class ReferenceTrieParser {
 public:
  static constexpr std::size_t kHeaderBytes = 16;

  // `header`: the first kHeaderBytes of the file, which has `file_size` bytes.
  // Throws std::invalid_argument, as all members do, with a text that continues "<file> ...".
  ReferenceTrieParser(Span<std::uint8_t> header, std::uint64_t file_size, std::int32_t vocab_size);

  int order() const { return order_; }
  std::uint64_t nodes() const { return nodes_; }

  // Takes the next bytes and appends the nodes that they complete, but for the root.
  void feed(Span<std::uint8_t> bytes, ReferenceNodes* leaves, ReferenceNodes* inner);

  // To be called after the last byte. Until then, nothing is known to be right.
  void finish() const;

 private:
  void read_children(const std::uint8_t* first, std::uint64_t children);
  [[noreturn]] void refuse(const std::string& problem) const;

  int order_;
  std::uint64_t nodes_;
  std::int32_t vocab_size_;

  std::vector<std::uint8_t> pending_;  // of a record that is not complete yet
  std::uint64_t offset_ = kHeaderBytes;  // of the next record in the file
  std::uint64_t id_ = 0;                 // the next record's
  std::uint64_t listed_ = 0;             // children so far
  // The sum of a hash over all edges as parents list them, less the same over all edges as children
  // name them. 0 at the end: the two are the same set.
  std::uint64_t edges_ = 0;
  std::vector<std::int32_t> tokens_;  // of one node's children
};

}  // namespace dart
