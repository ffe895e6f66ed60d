// Python bindings: checks and hands over numpy buffers; see dart_jax/_core.pyi for the interface.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dart/ngram_count.h"
#include "dart/ngram_model.h"
#include "dart/tree_search.h"

namespace py = pybind11;

namespace {

// Stands for an axis of any length.
constexpr py::ssize_t kAny = -1;

std::string shape_text(const std::vector<py::ssize_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + (shape[i] == kAny ? "*" : std::to_string(shape[i]));
  }
  return text + "]";
}

// Throws ValueError unless the array is an aligned, C-contiguous T of this shape.
template <class T>
void check_array(const py::array& array, const std::string& name,
                 const std::vector<py::ssize_t>& shape) {
  const auto wanted = py::dtype::of<T>();
  if (!array.dtype().equal(wanted)) {
    throw py::value_error(name + " must be " + std::string(py::str(wanted)) + ", got " +
                          std::string(py::str(array.dtype())));
  }
  const std::vector<py::ssize_t> actual(array.shape(), array.shape() + array.ndim());
  const bool fits = std::equal(
      actual.begin(), actual.end(), shape.begin(), shape.end(),
      [](py::ssize_t length, py::ssize_t asked) { return asked == kAny || length == asked; });
  if (!fits) {
    throw py::value_error(name + " must have shape " + shape_text(shape) + ", got " +
                          shape_text(actual));
  }
  if (!(array.flags() & py::array::c_style) ||
      !(array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) {
    throw py::value_error(name + " must be C-contiguous and aligned");
  }
}

template <class T>
const T* data(const py::array& array) {
  return static_cast<const T*>(array.data());
}

template <class T>
dart::Span<T> vector_span(const py::array& array, const std::string& name) {
  check_array<T>(array, name, {kAny});
  return {data<T>(array), static_cast<std::size_t>(array.size())};
}

template <class T>
py::array to_numpy(std::vector<T>&& values) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  const auto size = static_cast<py::ssize_t>(owner->size());
  const T* first = owner->data();
  py::capsule release(owner.release(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(size, first, release);
}

// A level's arrays as Python holds them: token, count, child_begin.
using LevelArrays = std::tuple<py::array, py::array, py::array>;

std::vector<dart::NgramLevel> level_spans(const std::vector<LevelArrays>& levels) {
  std::vector<dart::NgramLevel> spans;
  for (const auto& [token, count, child_begin] : levels) {
    spans.push_back({vector_span<std::int32_t>(token, "token"),
                     vector_span<std::int64_t>(count, "count"),
                     vector_span<std::int64_t>(child_begin, "child_begin")});
  }
  return spans;
}

// The model together with the arrays it reads.
struct PyNgramModel {
  explicit PyNgramModel(std::vector<LevelArrays> arrays)
      : levels(std::move(arrays)), model(level_spans(levels)) {}

  std::vector<LevelArrays> levels;
  dart::NgramModel model;
};

py::array_t<float> probabilities(const PyNgramModel& self, const py::array& context,
                                 const py::array& candidates) {
  dart::NgramState state;
  for (std::int32_t token : vector_span<std::int32_t>(context, "context")) {
    state = self.model.advance(state, token);
  }
  const auto tokens = vector_span<std::int32_t>(candidates, "candidates");
  py::array_t<float> out(static_cast<py::ssize_t>(tokens.size));
  self.model.probabilities(state, tokens, out.mutable_data());
  return out;
}

std::vector<LevelArrays> count_ngrams(const py::array& tokens, const py::array& offsets,
                                      int order) {
  const auto token_span = vector_span<std::int32_t>(tokens, "tokens");
  const auto offset_span = vector_span<std::int64_t>(offsets, "offsets");
  std::vector<dart::CountedLevel> counted;
  {
    py::gil_scoped_release release;
    counted = dart::count_ngrams(token_span, offset_span, order);
  }
  std::vector<LevelArrays> levels;
  for (dart::CountedLevel& level : counted) {
    levels.emplace_back(to_numpy(std::move(level.token)), to_numpy(std::move(level.count)),
                        to_numpy(std::move(level.child_begin)));
  }
  return levels;
}

std::unique_ptr<dart::TreeSearch> make_tree_search(const PyNgramModel* ngram, int nodes, int beam,
                                                   double level_decay, double logit_decay,
                                                   float ngram_weight, float eps,
                                                   std::vector<std::int32_t> eos) {
  return std::make_unique<dart::TreeSearch>(
      ngram == nullptr ? nullptr : &ngram->model,
      dart::TreeSearchConfig{nodes, beam, level_decay, logit_decay, ngram_weight, eps,
                             std::move(eos)});
}

void search(const dart::TreeSearch& self, const py::array& context, const py::array& tokens,
            const py::array& logits, py::array& out) {
  check_array<std::int32_t>(context, "context", {kAny, kAny});
  const py::ssize_t rows = context.shape(0);
  if (context.shape(1) == 0) throw py::value_error("context must hold at least the root");
  check_array<std::int32_t>(tokens, "tokens", {rows, kAny, kAny});
  check_array<float>(logits, "logits", {rows, tokens.shape(1), tokens.shape(2)});
  check_array<std::int32_t>(out, "out", {rows, 3, py::ssize_t(self.config().nodes) + 1});
  if (!out.writeable()) throw py::value_error("out must be writeable");

  dart::DraftBatch batch;
  batch.rows = static_cast<std::size_t>(rows);
  batch.context = static_cast<std::size_t>(context.shape(1));
  batch.levels = static_cast<std::size_t>(tokens.shape(1));
  batch.candidates = static_cast<std::size_t>(tokens.shape(2));
  batch.context_tokens = data<std::int32_t>(context);
  batch.tokens = data<std::int32_t>(tokens);
  batch.logits = data<float>(logits);
  auto* trees = static_cast<std::int32_t*>(out.mutable_data());

  py::gil_scoped_release release;
  self.search(batch, trees);
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of dart_jax: n-gram model and draft tree search.";

  m.attr("MAX_ORDER") = dart::kMaxOrder;
  m.def("count_ngrams", &count_ngrams, py::arg("tokens"), py::arg("offsets"), py::arg("order"));

  py::class_<PyNgramModel>(m, "NgramModel")
      .def(py::init<std::vector<LevelArrays>>(), py::arg("levels"))
      .def("probabilities", &probabilities, py::arg("context"), py::arg("candidates"));

  const dart::TreeSearchConfig defaults;
  py::class_<dart::TreeSearch>(m, "TreeSearch")
      .def(py::init(&make_tree_search), py::arg("ngram"), py::kw_only(), py::arg("nodes"),
           py::arg("beam") = defaults.beam, py::arg("level_decay") = defaults.level_decay,
           py::arg("logit_decay") = defaults.logit_decay,
           py::arg("ngram_weight") = defaults.ngram_weight, py::arg("eps") = defaults.eps,
           py::arg("eos") = defaults.eos,
           py::keep_alive<1, 2>())  // the search reads the model
      .def("search", &search, py::arg("context"), py::arg("tokens"), py::arg("logits"),
           py::arg("out"));
}
