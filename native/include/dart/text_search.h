// Drafts that the text itself makes: what followed earlier occurrences of its last tokens.
//
// A text's last tokens are compared with all that is before them, and with other texts. A *match*
// of length l at place i says that the l tokens before i, at most kLongestMatch, are the last ones,
// and token i a follower. Negative tokens are none: no match crosses them, and they follow nothing.
// Of more than kMostMatches matches the longest are kept, of equal ones the own text's before those
// of others, and then the latest. There are N_l of length l or more. Each match has a weight, that
// of its length m, in which all lengths have a say and longer ones more:
//
//   w(m) = sum over l <= m of s_l / N_l,  s_L = b, s_{L-1} = b (1 - b), ..; the shortest the rest
//
// L is the length of the longest. A node's matches are those of its parent that go on with its
// token, one longer. A follower's share is that of its matches in the node's weights.
//
// A drafter's tree may be the *base*, in which a node's probability is exp(its score less its
// parent's), at most 1. The followers and the base become one tree, of the N most likely nodes:
//
//   score(child) = score(parent) + min(log((1 - c) * base + c * share), 0)
//
// c says how far the longest of the parent's matches is to be trusted; it is 0 without matches.
// `base` is 0 for what is not in the base, and `share` for what is no follower. So without a base a
// follower adds log(c * share), and without matches of the text's end the tree is the base, bit for
// bit.
//
// Where the target samples, its noise is added to the followers' log shares divided by the
// temperature, and their shares are the softmax of these sums: mostly that of what will be drawn.
//
// Of equal scores, the node created first wins: of a parent's children those in the base, in its
// order, before other followers.
//
// All of a text is read at every step, without an index: 8000 tokens take a few microseconds, while
// an index of all contexts, such as a suffix automaton, would need many times the text's memory and
// an update with every token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dart/span.h"

namespace dart {

constexpr int kLongestMatch = 16;
constexpr std::size_t kMostMatches = 128;

struct TextSearchConfig {
  int nodes = 16;  // N, the root not counted
  int depth = 16;  // of followers that are not in the base, at most
  // c by length, from 1 on; from 0 to 1.
  std::array<float, kLongestMatch> trust;
  float longer = 0.75f;  // b
};

// One text.
struct TextRow {
  Span<std::int32_t> tokens;  // the last one is the root
  Span<std::int32_t> shared;  // tokens of other texts, with negative ones between two texts
  // [kTreeRows, base_places], or null: the base as TreeSearch writes it, after the same root.
  const std::int32_t* base = nullptr;
  std::size_t base_places = 0;
  // [4], or null: how the target draws; see DraftRow.
  const std::int32_t* draws = nullptr;
};

// Writes a text's tree to out [kTreeRows, nodes + 1], as TreeSearch does; with the root alone if
// there is nothing to draft, and zeros for a text without tokens or whose last one is negative.
void search_text(const TextSearchConfig& config, const TextRow& row, std::int32_t* out);

// How often followers of matches of a length, from 1 on, were what came next: the matches' number
// and that of right ones.
using FollowerCounts = std::uint32_t[kLongestMatch][2];

// Adds to `counts` what matches of the tokens before each place from `first` on say about the token
// there, by the longest match. Places without a match or with a negative token do not count.
void count_followers(Span<std::int32_t> tokens, std::size_t first, FollowerCounts& counts);

}  // namespace dart
