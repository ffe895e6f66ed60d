#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "dart/reference_trie.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

template <class T>
void put(Bytes* bytes, T value) {
  const auto at = bytes->size();
  bytes->resize(at + sizeof value);
  std::memcpy(bytes->data() + at, &value, sizeof value);
}

struct Child {
  std::int32_t token;
  std::uint64_t node;
};

void put_node(Bytes* bytes, std::int32_t token, std::uint64_t parent, std::int32_t count,
              const std::vector<Child>& children) {
  put(bytes, token);
  put(bytes, parent);
  put(bytes, count);
  put(bytes, std::uint64_t{children.size()});
  for (const Child& child : children) {
    put(bytes, child.token);
    put(bytes, child.node);
  }
}

// 5, 5 6, 5 7 and 6, of order 2; the child comes before its parent.
Bytes small_trie() {
  Bytes bytes;
  put(&bytes, std::uint64_t{2});
  put(&bytes, std::uint64_t{5});
  put_node(&bytes, 0, 0, -1, {{6, 4}, {5, 3}});  // the root's own fields are meaningless
  put_node(&bytes, 7, 3, 1, {});
  put_node(&bytes, 6, 3, 2, {});
  put_node(&bytes, 5, 0, 3, {{7, 1}, {6, 2}});
  put_node(&bytes, 6, 0, 2, {});
  return bytes;
}

struct Trie {
  dart::ReferenceNodes leaves;
  dart::ReferenceNodes inner;
};

Trie parse(const Bytes& bytes, std::size_t step, std::int32_t vocab_size = 8) {
  const dart::Span<std::uint8_t> header(bytes.data(), std::min<std::size_t>(bytes.size(), 16));
  dart::ReferenceTrieParser parser(header, bytes.size(), vocab_size);
  Trie trie;
  for (std::size_t at = 16; at < bytes.size(); at += step) {
    // A separate copy, so that a sanitizer sees reads beyond it.
    const Bytes piece(bytes.begin() + at, bytes.begin() + std::min(at + step, bytes.size()));
    parser.feed(piece, &trie.leaves, &trie.inner);
  }
  parser.finish();
  return trie;
}

void test_nodes() {
  const Bytes bytes = small_trie();
  for (std::size_t step = 1; step <= bytes.size(); ++step) {
    const Trie trie = parse(bytes, step);
    CHECK(trie.leaves.id.empty());
    CHECK((trie.leaves.parent == std::vector<std::uint64_t>{3, 3, 0}));
    CHECK((trie.leaves.token == std::vector<std::int32_t>{7, 6, 6}));
    CHECK((trie.leaves.count == std::vector<std::int32_t>{1, 2, 2}));
    CHECK((trie.inner.id == std::vector<std::uint64_t>{3}));
    CHECK((trie.inner.parent == std::vector<std::uint64_t>{0}));
    CHECK((trie.inner.token == std::vector<std::int32_t>{5}));
    CHECK((trie.inner.count == std::vector<std::int32_t>{3}));
  }
}

void test_rejects() {
  const Bytes bytes = small_trie();
  CHECK_THROWS(parse(bytes, 64, 7), std::invalid_argument);  // token 7 outside the vocabulary
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CHECK_THROWS(parse(Bytes(bytes.begin(), bytes.begin() + size), 64), std::invalid_argument);
  }

  // After the header and the root's own fields: its first child, with token 6.
  for (const std::int32_t token : {5, 7}) {
    Bytes damaged = bytes;
    std::memcpy(damaged.data() + 16 + 24, &token, sizeof token);
    CHECK_THROWS(parse(damaged, 64), std::invalid_argument);
  }

  const dart::Span<std::uint8_t> header(bytes.data(), 16);
  dart::ReferenceTrieParser unfinished(header, bytes.size(), 8);
  CHECK_THROWS(unfinished.finish(), std::invalid_argument);
}

// For any bytes, the parser throws or returns individually valid nodes.
void test_noise() {
  const Bytes bytes = small_trie();
  std::mt19937_64 random;
  for (int round = 0; round < 20000; ++round) {
    Bytes damaged = bytes;
    for (int changes = static_cast<int>(random() % 4); changes >= 0; --changes) {
      damaged[random() % damaged.size()] = static_cast<std::uint8_t>(random() >> (random() % 8));
    }
    try {
      const Trie trie = parse(damaged, 1 + random() % 64);
      CHECK(trie.leaves.token.size() + trie.inner.token.size() == 4);
      for (std::uint64_t parent : trie.leaves.parent) CHECK(parent < 5);
    } catch (const std::invalid_argument&) {
    }
  }
}

}  // namespace

int main() {
  test_nodes();
  test_rejects();
  test_noise();
  return failures == 0 ? 0 : 1;
}
