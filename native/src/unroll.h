// Hints to unroll loops and to compile functions into those that call them.
#pragma once

#if defined(__clang__)
#define DART_UNROLL _Pragma("clang loop unroll(full)")
#define DART_UNROLL_BY_4 _Pragma("clang loop unroll_count(4)")
#elif defined(__GNUC__)
#define DART_UNROLL _Pragma("GCC unroll 32")
#define DART_UNROLL_BY_4 _Pragma("GCC unroll 4")
#else
#define DART_UNROLL
#define DART_UNROLL_BY_4
#endif

#if defined(__GNUC__)
#define DART_INLINE inline __attribute__((always_inline))
#else
#define DART_INLINE inline
#endif
