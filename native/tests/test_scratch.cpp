// Arrays of a scratch never overlap, scopes give them back, and the next scratch has the memory.
#include "dart/scratch.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "check.h"

// Bytes that scratches have.
std::size_t allocated = 0;
constexpr std::size_t kBefore = 64;  // room for the size of a piece

void* operator new(std::size_t size, std::align_val_t) {
  void* const memory = std::aligned_alloc(64, (size + 2 * kBefore - 1) / kBefore * kBefore);
  if (memory == nullptr) throw std::bad_alloc();
  allocated += size;
  std::memcpy(memory, &size, sizeof size);
  return static_cast<char*>(memory) + kBefore;
}

void operator delete(void* pointer, std::align_val_t) noexcept {
  if (pointer == nullptr) return;
  void* const memory = static_cast<char*>(pointer) - kBefore;
  std::size_t size;
  std::memcpy(&size, memory, sizeof size);
  allocated -= size;
  std::free(memory);
}

namespace {

struct Array {
  unsigned char* begin;
  std::size_t size;
  unsigned char value;
};

void check(const std::vector<Array>& arrays) {
  for (const Array& array : arrays) {
    bool same = true;
    for (std::size_t i = 0; i < array.size; ++i) same &= array.begin[i] == array.value;
    CHECK(same);
    CHECK(reinterpret_cast<std::uintptr_t>(array.begin) % 64 == 0);
  }
}

// Arrays of random sizes, some in scopes: each keeps what was written into it.
void test_arrays() {
  std::mt19937 random(1);
  for (int call = 0; call < 20; ++call) {
    dart::Scratch scratch;
    std::vector<Array> arrays;
    const auto take = [&](std::vector<Array>& taken) {
      const std::size_t size = random() % (call % 2 == 0 ? 1000 : 100000);
      const auto value = static_cast<unsigned char>(random());
      taken.push_back({scratch.take<unsigned char>(size), size, value});
      std::memset(taken.back().begin, value, size);
    };
    for (int i = 0; i < 10; ++i) {
      take(arrays);
      std::vector<Array> inner = arrays;
      const dart::Scratch::Scope scope(scratch);
      for (int j = 0; j < 5; ++j) take(inner);
      check(inner);
    }
    check(arrays);
  }
}

void test_memory_is_kept() {
  const void* first;
  {
    dart::Scratch scratch;
    first = scratch.take<float>(1000);
    const dart::Scratch::Scope scope(scratch);
    scratch.take<float>(1000);
  }
  dart::Scratch scratch;
  CHECK(scratch.take<float>(2000) == first);
  // Two calls at the same time have memory of their own.
  dart::Scratch other;
  CHECK(other.take<float>(1) != first);
}

// What a prompt took is there for the next one, and after a step no more.
void test_much_memory_goes_back() {
  constexpr std::size_t kPrompt = 10 << 20, kStep = 1000;
  const auto bytes_after = [](std::size_t bytes) {
    dart::Scratch().take<char>(bytes);
    return allocated;
  };
  bytes_after(kPrompt);
  const std::size_t much = bytes_after(kPrompt);
  CHECK(much >= kPrompt && bytes_after(kPrompt) == much);
  CHECK(bytes_after(kStep) + kPrompt / 2 < much);
  CHECK(bytes_after(kStep) < kPrompt);
}

}  // namespace

int main() {
  test_memory_is_kept();
  test_arrays();
  test_much_memory_goes_back();
  return failures == 0 ? 0 : 1;
}
