// Reads and checks the n-gram trie of the reference implementation in one pass over its bytes.
//
// The file, little-endian: u64 order, u64 nodes; then per node: i32 token, u64 parent, i32 count,
// u64 children, and per child: i32 token, u64 node. A node's id is the number of its record; node 0
// is the root, whose own token, parent and count are meaningless. Ids and children are in any
// order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dart/span.h"

namespace dart {

// Nodes, in the order of their ids. A node is its parent's n-gram extended by one token.
struct ReferenceNodes {
  std::vector<std::uint64_t> id;  // empty for leaves, which no other node refers to
  std::vector<std::uint64_t> parent;
  std::vector<std::int32_t> token;
  std::vector<std::int32_t> count;
};

// Parses the file in consecutive pieces of any size; buffers only the record that a piece ends in.
// In a file that it accepts, every node is listed by its parent and siblings have distinct tokens.
// It does not check that all nodes are reachable from the root.
class ReferenceTrieParser {
 public:
  static constexpr std::size_t kHeaderBytes = 16;

  // `header`: the first kHeaderBytes of the file, which has `file_size` bytes.
  // Throws std::invalid_argument, as do all members, with a message that continues "<file> ...".
  ReferenceTrieParser(Span<std::uint8_t> header, std::uint64_t file_size, std::int32_t vocab_size);

  int order() const { return order_; }

  // Parses the next bytes and appends the nodes that they complete, except for the root.
  void feed(Span<std::uint8_t> bytes, ReferenceNodes* leaves, ReferenceNodes* inner);

  // Must be called after the last byte: only then are all checks done.
  void finish() const;

 private:
  void read_children(const std::uint8_t* first, std::uint64_t children);
  [[noreturn]] void refuse(const std::string& problem) const;

  int order_;
  std::uint64_t nodes_;
  std::int32_t vocab_size_;

  std::vector<std::uint8_t> pending_;  // the bytes of an incomplete record
  std::uint64_t offset_ = kHeaderBytes;  // of the next record in the file
  std::uint64_t id_ = 0;                 // the next record's
  std::uint64_t listed_ = 0;             // children so far
  // The sum of the hashes of all edges as listed by parents, minus those as named by children. 0 at
  // the end if the two sets are equal.
  std::uint64_t edges_ = 0;
  std::vector<std::int32_t> tokens_;  // of one node's children
};

}  // namespace dart
