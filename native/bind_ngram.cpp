// Python bindings of the n-gram model: reading, counting and writing files, and reading the
// reference's tries.
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
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

#include "bindings.h"
#include "dart/ngram_builder.h"
#include "dart/ngram_file_writer.h"
#include "dart/ngram_levels.h"
#include "dart/ngram_model.h"
#include "dart/perfect_hash.h"
#include "dart/reference_trie.h"
#include "numpy_arrays.h"

namespace {

// A level's numpy arrays: token, count, child_begin.
using LevelArrays = std::tuple<py::array, py::array, py::array>;

dart::NgramModel open_model(const py::array& file, bool checksums) {
  const auto span = vector_span<std::uint8_t>(file, "file");
  py::gil_scoped_release release;
  return dart::NgramModel(span, checksums);
}

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

// Returns, for each suffix of the context that was seen, shortest first: its count, the tokens that
// followed it, and their counts.
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

std::vector<dart::OwnedLevel> owned_levels(const PyNgramModel& self) {
  py::gil_scoped_release release;
  return self.model.levels();
}

std::vector<LevelArrays> levels(const PyNgramModel& self) {
  std::vector<LevelArrays> arrays;
  for (dart::OwnedLevel& level : owned_levels(self)) {
    arrays.emplace_back(to_numpy(std::move(level.token)), to_numpy(std::move(level.count)),
                        to_numpy(std::move(level.child_begin)));
  }
  return arrays;
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// Writes an n-gram file to the path.
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
    throw py::value_error("need one minimum count per length, or none");
  }
  std::copy(min_counts.begin(), min_counts.end(), options.min_count.begin());

  py::gil_scoped_release release;
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
  if (!file) throw std::runtime_error(std::strerror(errno));
  dart::write_ngram_file(levels, options, file.get(), release_pages);
}

void write_model(const PyNgramModel& self, const std::string& path,
                 const std::vector<std::uint64_t>& min_counts, std::uint32_t precision) {
  const std::vector<dart::OwnedLevel> levels = owned_levels(self);
  std::vector<dart::NgramLevel> spans;
  for (const auto& level : levels) spans.push_back({level.token, level.count, level.child_begin});
  const dart::format::Header& header = self.model.header();
  const std::string fingerprint(reinterpret_cast<const char*>(header.fingerprint),
                                sizeof header.fingerprint);
  write_file(spans, path, header.vocab_size, fingerprint, min_counts, precision, [] {});
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

std::unique_ptr<dart::ReferenceTrieParser> make_reference_trie_parser(const py::array& header,
                                                                      std::uint64_t file_size,
                                                                      std::int32_t vocab_size) {
  return std::make_unique<dart::ReferenceTrieParser>(vector_span<std::uint8_t>(header, "header"),
                                                     file_size, vocab_size);
}

// Returns columns by name; leaves have no id column.
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

// Returns the size of the table, the buckets' seeds, and the keys' places.
py::tuple perfect_hash(const py::array& first, const py::array& second) {
  const auto firsts = vector_span<std::int32_t>(first, "first");
  const auto seconds = vector_span<std::int32_t>(second, "second");
  dart::PerfectHash hash;
  {
    py::gil_scoped_release release;
    hash = dart::make_perfect_hash(firsts, seconds);
  }
  return py::make_tuple(hash.size, to_numpy(std::move(hash.seeds)), to_numpy(std::move(hash.place)));
}

}  // namespace

PyNgramModel::PyNgramModel(py::array array, bool checksums)
    : file(std::move(array)), model(open_model(file, checksums)) {}

void bind_ngram(py::module_& m) {
  m.attr("MAX_ORDER") = dart::kMaxOrder;
  m.attr("MAGIC") = py::bytes(dart::format::kMagic, sizeof dart::format::kMagic);
  m.attr("MAX_VOCABULARY") = dart::format::kMaxVocabulary;
  m.def("perfect_hash", &perfect_hash, py::arg("first"), py::arg("second"));

  py::class_<PyNgramModel>(m, "NgramModel")
      .def(py::init<py::array, bool>(), py::arg("file"), py::arg("checksums") = true)
      .def("header", &header)
      .def("levels", &levels)
      .def("write", &write_model, py::arg("path"), py::kw_only(), py::arg("min_counts"),
           py::arg("precision"))
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
      .def("feed", &feed, py::arg("bytes"))
      .def("finish", &dart::ReferenceTrieParser::finish);
}
