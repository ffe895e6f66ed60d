// Python bindings of the draft tree search.
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dart/search_handle.h"
#include "dart/tree_search.h"
#include "numpy_arrays.h"

#ifdef DART_FFI
#include "ffi.h"
#endif

namespace {

std::unique_ptr<dart::TreeSearch> make_tree_search(const PyNgramModel* ngram, int nodes, int beam,
                                                   double level_decay, double logit_decay,
                                                   float ngram_weight, float eps,
                                                   std::vector<std::int32_t> eos, int threads) {
  return std::make_unique<dart::TreeSearch>(
      ngram == nullptr ? nullptr : &ngram->model,
      dart::TreeSearchConfig{nodes, beam, level_decay, logit_decay, ngram_weight, eps,
                             std::move(eos), threads});
}

// Checks an array whose first axis may have any stride. Returns that stride, in elements.
template <class T>
std::size_t row_stride(const py::array& array, const std::string& name,
                       const std::vector<py::ssize_t>& shape) {
  check_type_and_shape<T>(array, name, shape);
  if (array.size() == 0) return 0;
  py::ssize_t inner = sizeof(T);
  for (py::ssize_t axis = array.ndim() - 1; axis > 0; --axis) {
    if (array.shape(axis) > 1 && array.strides(axis) != inner) {
      throw py::value_error(name + " must be contiguous within a row");
    }
    inner *= array.shape(axis);
  }
  const py::ssize_t stride = array.shape(0) > 1 ? array.strides(0) : inner;
  if (stride < 0 || stride % py::ssize_t(sizeof(T)) != 0) {
    throw py::value_error(name + " must be contiguous within a row");
  }
  return static_cast<std::size_t>(stride) / sizeof(T);
}

// Checks a search's arrays and wraps them in a batch.
dart::DraftBatch draft_batch(const dart::TreeSearch& search, const py::array& context,
                             const py::array& tokens, const py::array& logits,
                             const py::array& out,
                             const std::optional<py::array>& pairs,
                             const std::optional<py::array>& draws = std::nullopt) {
  dart::DraftBatch batch;
  batch.context_stride = row_stride<std::int32_t>(context, "context", {kAny, kAny});
  const py::ssize_t rows = context.shape(0);
  if (context.shape(1) == 0) throw py::value_error("context must hold at least the root");
  batch.tokens_stride = row_stride<std::int32_t>(tokens, "tokens", {rows, kAny, kAny});
  batch.logits_stride =
      row_stride<float>(logits, "logits", {rows, tokens.shape(1), tokens.shape(2)});
  check_array<std::int32_t>(
      out, "out", {rows, dart::kTreeRows, py::ssize_t(search.config().nodes) + 1});
  if (!out.writeable()) throw py::value_error("out must be writeable");

  batch.rows = static_cast<std::size_t>(rows);
  batch.context = static_cast<std::size_t>(context.shape(1));
  batch.levels = static_cast<std::size_t>(tokens.shape(1));
  batch.candidates = static_cast<std::size_t>(tokens.shape(2));
  batch.context_tokens = data<std::int32_t>(context);
  batch.tokens = data<std::int32_t>(tokens);
  batch.logits = data<float>(logits);
  if (pairs) {
    const py::ssize_t levels = tokens.shape(1), k = tokens.shape(2);
    batch.pairs_stride =
        row_stride<float>(*pairs, "pairs", {rows, std::max<py::ssize_t>(levels - 1, 0), k, k});
    batch.pairs = data<float>(*pairs);
  }
  if (draws) {
    batch.draws_stride = row_stride<std::int32_t>(*draws, "draws", {rows, dart::kDraws});
    batch.draws = data<std::int32_t>(*draws);
  }
  return batch;
}

void search(const dart::TreeSearch& self, const py::array& context, const py::array& tokens,
            const py::array& logits, py::array& out, const std::optional<py::array>& pairs,
            const std::optional<py::array>& draws) {
  const dart::DraftBatch batch = draft_batch(self, context, tokens, logits, out, pairs, draws);
  auto* trees = static_cast<std::int32_t*>(out.mutable_data());
  py::gil_scoped_release release;
  self.search(batch, trees);
}

// As search, but sequentially row by row. Returns the seconds per row.
py::array_t<double> timed_search(const dart::TreeSearch& self, const py::array& context,
                                 const py::array& tokens, const py::array& logits,
                                 py::array& out, const std::optional<py::array>& pairs) {
  dart::DraftBatch batch = draft_batch(self, context, tokens, logits, out, pairs);
  py::array_t<double> seconds(static_cast<py::ssize_t>(batch.rows));
  double* second = seconds.mutable_data();
  auto* trees = static_cast<std::int32_t*>(out.mutable_data());
  const std::size_t rows = batch.rows;
  batch.rows = 1;

  py::gil_scoped_release release;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto start = std::chrono::steady_clock::now();
    self.search(batch, trees);
    second[row] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    batch.context_tokens += batch.context_stride;
    batch.tokens += batch.tokens_stride;
    batch.logits += batch.logits_stride;
    if (batch.pairs != nullptr) batch.pairs += batch.pairs_stride;
    trees += std::size_t(dart::kTreeRows) * (std::size_t(self.config().nodes) + 1);
  }
  return seconds;
}

}  // namespace

void bind_search(py::module_& m) {
  const dart::TreeSearchConfig defaults;
  py::class_<dart::TreeSearch>(m, "TreeSearch")
      .def(py::init(&make_tree_search), py::arg("ngram"), py::kw_only(), py::arg("nodes"),
           py::arg("beam") = defaults.beam, py::arg("level_decay") = defaults.level_decay,
           py::arg("logit_decay") = defaults.logit_decay,
           py::arg("ngram_weight") = defaults.ngram_weight, py::arg("eps") = defaults.eps,
           py::arg("eos") = defaults.eos, py::arg("threads") = defaults.threads,
           py::keep_alive<1, 2>())  // the search reads the model
      .def("search", &search, py::arg("context"), py::arg("tokens"), py::arg("logits"),
           py::arg("out"), py::arg("pairs") = py::none(), py::arg("draws") = py::none())
      .def_property_readonly("seconds", &dart::TreeSearch::seconds)
      .def("timed_search", &timed_search, py::arg("context"), py::arg("tokens"),
           py::arg("logits"), py::arg("out"), py::arg("pairs") = py::none());

  py::class_<dart::SearchHandle>(m, "SearchHandle")
      .def(py::init<const dart::TreeSearch&>(), py::arg("search"), py::keep_alive<1, 2>())
      .def_property_readonly("value", &dart::SearchHandle::value);

#ifdef DART_FFI
  m.attr("ffi_handler") = py::capsule(dart_search_handler());
#else
  m.attr("ffi_handler") = py::none();
#endif
}
