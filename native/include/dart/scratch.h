// Memory for intermediate results, kept from call to call.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace dart {

// Arrays are taken one after another, and given back by scopes. A call has its memory to itself, and
// leaves it to the next one, of any thread, unless that is much more than it took.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Gives back, at its end, what was taken since its beginning.
  class Scope {
   public:
    explicit Scope(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
    ~Scope() { scratch_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Scratch& scratch_;
    const std::size_t used_;
  };

  // An array that holds anything; it begins a line of the cache.
  template <class T>
  T* take(std::size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }

 private:
  struct Block {
    explicit Block(std::size_t size);

    struct Free {
      void operator()(char* memory) const;
    };
    std::unique_ptr<char, Free> memory;
    std::size_t size;
  };
  struct Idle;  // blocks that no call has

  static Idle& idle();
  void* take_bytes(std::size_t bytes);

  std::vector<Block> blocks_;
  std::size_t used_ = 0;  // of all blocks, as if they followed each other
  std::size_t most_ = 0;  // that was ever used
};

}  // namespace dart
