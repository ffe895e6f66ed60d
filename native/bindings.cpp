// Python bindings: checks and hands over numpy buffers; see dart_jax/_core.pyi for the interface.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dart/ngram_builder.h"
#include "dart/ngram_file_writer.h"
#include "dart/ngram_levels.h"
#include "dart/ngram_model.h"
#include "dart/reference_trie.h"
#include "dart/search_handle.h"
#include "dart/tree_search.h"

#ifdef DART_FFI
#include "ffi.h"
#endif

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

// Throws ValueError unless the array is an aligned T of this shape.
template <class T>
void check_type_and_shape(const py::array& array, const std::string& name,
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
  if (!(array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_)) {
    throw py::value_error(name + " must be aligned");
  }
}

// The same, and C-contiguous.
template <class T>
void check_array(const py::array& array, const std::string& name,
                 const std::vector<py::ssize_t>& shape) {
  check_type_and_shape<T>(array, name, shape);
  if (!(array.flags() & py::array::c_style)) {
    throw py::value_error(name + " must be C-contiguous");
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

std::vector<LevelArrays> level_arrays(std::vector<dart::OwnedLevel>&& levels) {
  std::vector<LevelArrays> arrays;
  for (dart::OwnedLevel& level : levels) {
    arrays.emplace_back(to_numpy(std::move(level.token)), to_numpy(std::move(level.count)),
                        to_numpy(std::move(level.child_begin)));
  }
  return arrays;
}

std::vector<dart::NgramLevel> level_spans(const std::vector<LevelArrays>& levels) {
  std::vector<dart::NgramLevel> spans;
  for (const auto& [token, count, child_begin] : levels) {
    spans.push_back({vector_span<std::int32_t>(token, "token"),
                     vector_span<std::int64_t>(count, "count"),
                     vector_span<std::int64_t>(child_begin, "child_begin")});
  }
  return spans;
}

// The model together with the bytes it reads.
struct PyNgramModel {
  PyNgramModel(py::array array, bool checksums)
      : file(std::move(array)), model(open(file, checksums)) {}

  static dart::NgramModel open(const py::array& file, bool checksums) {
    const auto span = vector_span<std::uint8_t>(file, "file");
    py::gil_scoped_release release;
    return dart::NgramModel(span, checksums);
  }

  py::array file;
  dart::NgramModel model;
};

py::dict header(const PyNgramModel& self) {
  const dart::format::Header& header = self.model.header();
  const auto by_length = [&](const std::uint64_t* values) {
    return std::vector<std::uint64_t>(values, values + header.order);
  };
  py::dict fields;
  fields["version"] = header.version;
  fields["order"] = header.order;
  fields["precision"] = header.precision;
  fields["vocab_size"] = header.vocab_size;
  fields["tokens"] = header.tokens;
  fields["ngrams"] = by_length(header.ngrams);
  fields["dropped"] = by_length(header.dropped);
  fields["min_count"] = by_length(header.min_count);
  fields["fingerprint"] =
      py::bytes(reinterpret_cast<const char*>(header.fingerprint), sizeof header.fingerprint);
  fields["list_bytes"] = header.lists.bytes;
  fields["unigram_bytes"] = header.unigrams.bytes;
  return fields;
}

dart::NgramState state_after(const dart::NgramModel& model, const py::array& context) {
  dart::NgramState state;
  for (std::int32_t token : vector_span<std::int32_t>(context, "context")) {
    state = model.advance(state, token);
  }
  return state;
}

py::array_t<float> probabilities(const PyNgramModel& self, const py::array& context,
                                 const py::array& candidates) {
  const dart::NgramState state = state_after(self.model, context);
  const auto tokens = vector_span<std::int32_t>(candidates, "candidates");
  py::array_t<float> out(static_cast<py::ssize_t>(tokens.size));
  self.model.probabilities(state, tokens, out.mutable_data());
  return out;
}

// Of every known suffix of the context, the shortest first: its count, tokens and their counts.
std::vector<std::tuple<std::uint64_t, py::array, py::array>> continuations(
    const PyNgramModel& self, const py::array& context) {
  const dart::NgramState state = state_after(self.model, context);
  std::vector<std::tuple<std::uint64_t, py::array, py::array>> all;
  for (dart::Continuations& found : self.model.continuations(state)) {
    all.emplace_back(found.count, to_numpy(std::move(found.token)),
                     to_numpy(std::move(found.counts)));
  }
  return all;
}

std::vector<LevelArrays> levels(const PyNgramModel& self) {
  std::vector<dart::OwnedLevel> owned;
  {
    py::gil_scoped_release release;
    owned = self.model.levels();
  }
  return level_arrays(std::move(owned));
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// Writes an n-gram file at the path.
void write_file(const std::vector<dart::NgramLevel>& levels, const std::string& path,
                std::uint64_t vocab_size, const std::string& fingerprint,
                const std::vector<std::uint64_t>& min_counts, std::uint32_t precision,
                const std::function<void()>& release_pages) {
  dart::NgramFileOptions options;
  options.vocab_size = vocab_size;
  options.precision = precision;
  if (fingerprint.size() != options.fingerprint.size()) {
    throw py::value_error("fingerprint must be 32 bytes");
  }
  std::copy(fingerprint.begin(), fingerprint.end(), options.fingerprint.begin());
  if (!min_counts.empty() && min_counts.size() != levels.size()) {
    throw py::value_error("need one minimum count for each length, or none");
  }
  std::copy(min_counts.begin(), min_counts.end(), options.min_count.begin());

  py::gil_scoped_release release;
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
  if (!file) throw std::runtime_error(std::strerror(errno));
  dart::write_ngram_file(levels, options, file.get(), release_pages);
}

void write_levels(const std::vector<LevelArrays>& arrays, const std::string& path,
                  std::uint64_t vocab_size, const py::bytes& fingerprint,
                  const std::vector<std::uint64_t>& min_counts, std::uint32_t precision) {
  const auto spans = level_spans(arrays);
  {
    py::gil_scoped_release release;
    dart::check_levels(spans, vocab_size);
  }
  write_file(spans, path, vocab_size, fingerprint, min_counts, precision, [] {});
}

void add_windows(dart::NgramBuilder& self, const py::array& windows, const py::array& counts) {
  check_array<std::uint64_t>(windows, "windows", {kAny, py::ssize_t(self.words())});
  check_array<std::int64_t>(counts, "counts", {windows.shape(0)});
  const auto size = static_cast<std::size_t>(counts.size());
  py::gil_scoped_release release;
  self.add(data<std::uint64_t>(windows), data<std::int64_t>(counts), size);
}

void write_builder(dart::NgramBuilder& self, const std::string& path, const py::bytes& fingerprint,
                   const std::vector<std::uint64_t>& min_counts, std::uint32_t precision) {
  std::vector<dart::NgramLevel> levels;
  {
    py::gil_scoped_release release;
    levels = self.finish();
  }
  write_file(levels, path, self.vocab_size(), fingerprint, min_counts, precision,
             [&self] { self.release(); });
}

dart::Ties parse_ties(const std::string& ties) {
  if (ties == "first") return dart::Ties::kFirst;
  if (ties == "compat") return dart::Ties::kCompatible;
  throw py::value_error("ties must be 'first' or 'compat', got '" + ties + "'");
}

std::unique_ptr<dart::ReferenceTrieParser> make_reference_trie_parser(const py::array& header,
                                                                      std::uint64_t file_size,
                                                                      std::int32_t vocab_size) {
  return std::make_unique<dart::ReferenceTrieParser>(vector_span<std::uint8_t>(header, "header"),
                                                     file_size, vocab_size);
}

// Columns by name; without ids for leaves.
py::dict node_columns(dart::ReferenceNodes&& nodes) {
  py::dict columns;
  if (!nodes.id.empty()) columns["id"] = to_numpy(std::move(nodes.id));
  columns["parent"] = to_numpy(std::move(nodes.parent));
  columns["token"] = to_numpy(std::move(nodes.token));
  columns["count"] = to_numpy(std::move(nodes.count));
  return columns;
}

py::tuple feed(dart::ReferenceTrieParser& self, const py::array& bytes) {
  const auto span = vector_span<std::uint8_t>(bytes, "bytes");
  dart::ReferenceNodes leaves, inner;
  {
    py::gil_scoped_release release;
    self.feed(span, &leaves, &inner);
  }
  return py::make_tuple(node_columns(std::move(leaves)), node_columns(std::move(inner)));
}

std::unique_ptr<dart::TreeSearch> make_tree_search(const PyNgramModel* ngram, int nodes, int beam,
                                                   double level_decay, double logit_decay,
                                                   float ngram_weight, float eps,
                                                   std::vector<std::int32_t> eos,
                                                   const std::string& ties, int threads) {
  return std::make_unique<dart::TreeSearch>(
      ngram == nullptr ? nullptr : &ngram->model,
      dart::TreeSearchConfig{nodes, beam, level_decay, logit_decay, ngram_weight, eps,
                             std::move(eos), parse_ties(ties), threads});
}

// Checks an array whose first axis may have any stride. Returns it, in values.
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

// Checks the arrays of a search and makes a batch of them.
dart::DraftBatch draft_batch(const dart::TreeSearch& search, const py::array& context,
                             const py::array& tokens, const py::array& logits,
                             const py::array& out) {
  dart::DraftBatch batch;
  batch.context_stride = row_stride<std::int32_t>(context, "context", {kAny, kAny});
  const py::ssize_t rows = context.shape(0);
  if (context.shape(1) == 0) throw py::value_error("context must hold at least the root");
  batch.tokens_stride = row_stride<std::int32_t>(tokens, "tokens", {rows, kAny, kAny});
  batch.logits_stride =
      row_stride<float>(logits, "logits", {rows, tokens.shape(1), tokens.shape(2)});
  check_array<std::int32_t>(out, "out", {rows, 3, py::ssize_t(search.config().nodes) + 1});
  if (!out.writeable()) throw py::value_error("out must be writeable");

  batch.rows = static_cast<std::size_t>(rows);
  batch.context = static_cast<std::size_t>(context.shape(1));
  batch.levels = static_cast<std::size_t>(tokens.shape(1));
  batch.candidates = static_cast<std::size_t>(tokens.shape(2));
  batch.context_tokens = data<std::int32_t>(context);
  batch.tokens = data<std::int32_t>(tokens);
  batch.logits = data<float>(logits);
  return batch;
}

void search(const dart::TreeSearch& self, const py::array& context, const py::array& tokens,
            const py::array& logits, py::array& out) {
  const dart::DraftBatch batch = draft_batch(self, context, tokens, logits, out);
  auto* trees = static_cast<std::int32_t*>(out.mutable_data());
  py::gil_scoped_release release;
  self.search(batch, trees);
}

// The same, one row after the other. Returns the seconds that each took.
py::array_t<double> timed_search(const dart::TreeSearch& self, const py::array& context,
                                 const py::array& tokens, const py::array& logits,
                                 py::array& out) {
  dart::DraftBatch batch = draft_batch(self, context, tokens, logits, out);
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
    trees += 3 * (std::size_t(self.config().nodes) + 1);
  }
  return seconds;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of dart_jax: n-gram model and draft tree search.";

  m.attr("MAX_ORDER") = dart::kMaxOrder;
  m.attr("MAGIC") = py::bytes(dart::format::kMagic, sizeof dart::format::kMagic);
  m.attr("MAX_VOCABULARY") = dart::format::kMaxVocabulary;
  m.def("write_levels", &write_levels, py::arg("levels"), py::arg("path"), py::kw_only(),
        py::arg("vocab_size"), py::arg("fingerprint"), py::arg("min_counts"),
        py::arg("precision"));

  py::class_<PyNgramModel>(m, "NgramModel")
      .def(py::init<py::array, bool>(), py::arg("file"), py::arg("checksums") = true)
      .def("header", &header)
      .def(
          "check", [](const PyNgramModel& self) { self.model.check(); },
          py::call_guard<py::gil_scoped_release>())
      .def("levels", &levels)
      .def("continuations", &continuations, py::arg("context"))
      .def("probabilities", &probabilities, py::arg("context"), py::arg("candidates"));

  py::class_<dart::NgramBuilder>(m, "NgramBuilder")
      .def(py::init<int, std::uint64_t, const std::string&>(), py::arg("order"),
           py::arg("vocab_size"), py::arg("scratch") = "")
      .def("add", &add_windows, py::arg("windows"), py::arg("counts"))
      .def("write", &write_builder, py::arg("path"), py::kw_only(), py::arg("fingerprint"),
           py::arg("min_counts"), py::arg("precision"));

  py::class_<dart::ReferenceTrieParser>(m, "ReferenceTrieParser")
      .def(py::init(&make_reference_trie_parser), py::arg("header"), py::arg("file_size"),
           py::arg("vocab_size"))
      .def_property_readonly("order", &dart::ReferenceTrieParser::order)
      .def_property_readonly("nodes", &dart::ReferenceTrieParser::nodes)
      .def("feed", &feed, py::arg("bytes"))
      .def("finish", &dart::ReferenceTrieParser::finish);

  const dart::TreeSearchConfig defaults;
  py::class_<dart::TreeSearch>(m, "TreeSearch")
      .def(py::init(&make_tree_search), py::arg("ngram"), py::kw_only(), py::arg("nodes"),
           py::arg("beam") = defaults.beam, py::arg("level_decay") = defaults.level_decay,
           py::arg("logit_decay") = defaults.logit_decay,
           py::arg("ngram_weight") = defaults.ngram_weight, py::arg("eps") = defaults.eps,
           py::arg("eos") = defaults.eos, py::arg("ties") = "first",
           py::arg("threads") = defaults.threads,
           py::keep_alive<1, 2>())  // the search reads the model
      .def("search", &search, py::arg("context"), py::arg("tokens"), py::arg("logits"),
           py::arg("out"))
      .def_property("seconds", &dart::TreeSearch::seconds, &dart::TreeSearch::set_seconds)
      .def("timed_search", &timed_search, py::arg("context"), py::arg("tokens"),
           py::arg("logits"), py::arg("out"));

  py::class_<dart::SearchHandle>(m, "SearchHandle")
      .def(py::init<const dart::TreeSearch&>(), py::arg("search"), py::keep_alive<1, 2>())
      .def_property_readonly("value", &dart::SearchHandle::value);

#ifdef DART_FFI
  m.attr("ffi_handler") = py::capsule(dart_search_handler());
#else
  m.attr("ffi_handler") = py::none();
#endif
}
