#include "dart/ngram_builder.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "dart/ngram_format.h"
#include "require.h"

namespace dart {
namespace {

[[noreturn]] void throw_io_error(const char* what, const std::string& path) {
  throw std::runtime_error(std::string("cannot ") + what + " " + path + ": " +
                           std::strerror(errno));
}

}  // namespace

template <class T>
Column<T>::Column(const std::string& path) : path_(path) {
  if (path.empty()) return;
  file_ = std::fopen(path.c_str(), "w+b");
  if (file_ == nullptr) throw_io_error("write", path);
  buffer_.reserve(kBuffered);
}

template <class T>
Column<T>::~Column() {
  if (mapped_ != nullptr) munmap(mapped_, stored_ * sizeof(T));
  if (file_ != nullptr) std::fclose(file_);
}

template <class T>
void Column<T>::flush() {
  if (std::fwrite(buffer_.data(), sizeof(T), buffer_.size(), file_) != buffer_.size()) {
    throw_io_error("write", path_);
  }
  stored_ += buffer_.size();
  buffer_.clear();
}

template <class T>
Span<T> Column<T>::finish() {
  if (file_ == nullptr) return buffer_;
  flush();
  if (std::fflush(file_) != 0) throw_io_error("write", path_);
  if (stored_ == 0) return {};
  void* mapped = mmap(nullptr, stored_ * sizeof(T), PROT_READ, MAP_SHARED, fileno(file_), 0);
  if (mapped == MAP_FAILED) throw_io_error("map", path_);
  mapped_ = mapped;
  return {static_cast<const T*>(mapped), stored_};
}

template <class T>
void Column<T>::release() const {
  if (mapped_ != nullptr) madvise(mapped_, stored_ * sizeof(T), MADV_DONTNEED);
}

template class Column<std::int32_t>;
template class Column<std::int64_t>;

NgramBuilder::NgramBuilder(int order, std::uint64_t vocab_size, const std::string& scratch)
    : vocab_size_(vocab_size) {
  require(order >= 1 && order <= kMaxOrder, "order must be 1 to 5");
  require(vocab_size >= 1 && vocab_size <= format::kMaxVocabulary,
          "vocabulary size must be 1 to 2^24");
  token_bits_ = bit_length(vocab_size);
  per_word_ = std::min<std::size_t>(static_cast<std::size_t>(order), 64 / token_bits_);
  words_ = (static_cast<std::size_t>(order) + per_word_ - 1) / per_word_;
  for (int n = 1; n <= order; ++n) {
    levels_.push_back(std::make_unique<Level>(
        scratch.empty() ? scratch : scratch + "/level" + std::to_string(n)));
  }
}

void NgramBuilder::unpack(const std::uint64_t* window, std::int32_t* tokens) const {
  const std::uint64_t mask = (std::uint64_t{1} << token_bits_) - 1;
  std::array<std::uint64_t, kMaxOrder> rest{};
  std::copy_n(window, words_, rest.begin());
  bool ended = false;
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    const std::size_t shift = (per_word_ - 1 - i % per_word_) * token_bits_;
    const std::uint64_t code = (window[i / per_word_] >> shift) & mask;
    require(code <= vocab_size_ && !(ended && code != 0) && !(i == 0 && code == 0),
            "a window is not made of the vocabulary's tokens");
    ended = code == 0;
    tokens[i] = static_cast<std::int32_t>(code) - 1;
    rest[i / per_word_] ^= code << shift;
  }
  require(std::all_of(rest.begin(), rest.end(), [](std::uint64_t word) { return word == 0; }),
          "a window is not made of the vocabulary's tokens");
}

// Closes the newest n-grams of more than `from` tokens.
void NgramBuilder::close(int from) {
  for (std::size_t i = static_cast<std::size_t>(from); i < levels_.size(); ++i) {
    Level& level = *levels_[i];
    if (level.open_token < 0) continue;
    level.token.push_back(level.open_token);
    level.count.push_back(level.open_count);
    level.open_token = -1;
  }
}

void NgramBuilder::add(const std::uint64_t* windows, const std::int64_t* counts,
                       std::size_t size) {
  require(!finished_, "nothing can be added any more");
  const int order = static_cast<int>(levels_.size());
  std::array<std::int32_t, kMaxOrder> tokens{};
  for (std::size_t w = 0; w < size; ++w) {
    unpack(windows + w * words_, tokens.data());
    require(counts[w] >= 0, "a count is negative");
    int shared = 0;
    while (shared < order && tokens[shared] >= 0 &&
           tokens[shared] == levels_[shared]->open_token) {
      ++shared;
    }
    // Windows ascend if the first token that differs from the previous window is larger.
    require(shared < order && tokens[shared] > levels_[shared]->open_token,
            "windows do not ascend");
    close(shared);
    for (int i = 0; i < order && tokens[i] >= 0; ++i) {
      Level& level = *levels_[i];
      if (i >= shared) {
        level.open_token = tokens[i];
        level.open_count = 0;
        if (i + 1 < order) {
          level.child_begin.push_back(static_cast<std::int64_t>(levels_[i + 1]->token.size()));
        }
      }
      require(counts[w] <= std::numeric_limits<std::int64_t>::max() - level.open_count,
              "counts are too large");
      level.open_count += counts[w];
    }
  }
}

std::vector<NgramLevel> NgramBuilder::finish() {
  require(!finished_, "it was finished before");
  finished_ = true;
  close(0);
  std::vector<NgramLevel> spans;
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    Level& level = *levels_[i];
    if (i + 1 < levels_.size()) {
      level.child_begin.push_back(static_cast<std::int64_t>(levels_[i + 1]->token.size()));
    }
    spans.push_back({level.token.finish(), level.count.finish(), level.child_begin.finish()});
  }
  return spans;
}

void NgramBuilder::release() const {
  for (const auto& level : levels_) {
    level->token.release();
    level->count.release();
    level->child_begin.release();
  }
}

}  // namespace dart
