// The Python module dart_jax._core; see dart_jax/_core.pyi for its interface.
#include "bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of dart_jax: n-gram model, draft tree search and layers for CPUs.";
  bind_ngram(m);
  bind_search(m);
  bind_text(m);
  bind_cpu(m);
}
