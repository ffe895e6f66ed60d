// Builds the n-grams of a corpus from its sorted windows.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "dart/ngram_levels.h"
#include "dart/span.h"

namespace dart {

// An append-only array that is read once it is finished. With a path it is stored in a file: memory
// then holds only the newest part, and after finish() the pages being read.
template <class T>
class Column {
 public:
  explicit Column(const std::string& path = "");
  ~Column();
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;

  std::uint64_t size() const { return stored_ + buffer_.size(); }
  void push_back(T value) {
    buffer_.push_back(value);
    if (file_ != nullptr && buffer_.size() == kBuffered) flush();
  }

  // Ends appending. The span is valid as long as the column.
  Span<T> finish();

  // Releases the pages read so far; they are read from the file again when needed.
  void release() const;

 private:
  static constexpr std::size_t kBuffered = std::size_t{1} << 18;

  void flush();

  std::string path_;
  std::FILE* file_ = nullptr;
  std::uint64_t stored_ = 0;
  std::vector<T> buffer_;
  void* mapped_ = nullptr;
};

// Converts the distinct windows of a corpus, added in ascending order, into n-gram levels; see
// dart_jax/ngram/windows.py for the windows.
class NgramBuilder {
 public:
  // Args:
  //   order: 1 .. kMaxOrder.
  //   scratch: directory for temporary files, which the caller removes; empty: all in memory.
  // Throws std::invalid_argument for an order or a vocabulary size out of range.
  NgramBuilder(int order, std::uint64_t vocab_size, const std::string& scratch);

  std::uint64_t vocab_size() const { return vocab_size_; }
  std::size_t words() const { return words_; }

  // Adds `size` windows of words() words each.
  // Throws std::invalid_argument for windows that do not ascend or contain tokens outside the
  // vocabulary, and for negative counts.
  void add(const std::uint64_t* windows, const std::int64_t* counts, std::size_t size);

  // Ends adding. The levels are valid as long as the builder.
  std::vector<NgramLevel> finish();

  // See Column::release.
  void release() const;

 private:
  struct Level {
    explicit Level(const std::string& path)
        : token(path.empty() ? path : path + ".token"),
          count(path.empty() ? path : path + ".count"),
          child_begin(path.empty() ? path : path + ".child") {}
    Column<std::int32_t> token;
    Column<std::int64_t> count;
    Column<std::int64_t> child_begin;
    // The newest n-gram, whose count is still growing; -1 if there is none.
    std::int32_t open_token = -1;
    std::int64_t open_count = 0;
  };

  void unpack(const std::uint64_t* window, std::int32_t* tokens) const;
  void close(int from);

  std::uint64_t vocab_size_;
  unsigned token_bits_;
  std::size_t per_word_;
  std::size_t words_;
  std::vector<std::unique_ptr<Level>> levels_;
  bool finished_ = false;
};

}  // namespace dart
