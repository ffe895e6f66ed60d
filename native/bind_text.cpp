// Python bindings of the drafts that texts make themselves.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "bindings.h"
#include "dart/text_search.h"
#include "dart/tree_search.h"
#include "numpy_arrays.h"

namespace {

constexpr py::ssize_t kRows = dart::kTreeRows;

void text_tree(const py::array& tokens, py::array& out, int depth, const py::array& trust,
               const std::optional<py::array>& base, const std::optional<py::array>& draws) {
  dart::TextRow row;
  row.tokens = vector_span<std::int32_t>(tokens, "tokens");
  check_array<std::int32_t>(out, "out", {kRows, kAny});
  if (out.shape(1) == 0) throw py::value_error("out must hold at least the root");
  if (!out.writeable()) throw py::value_error("out must be writeable");
  check_array<float>(trust, "trust", {dart::kLongestMatch});
  if (base) {
    check_array<std::int32_t>(*base, "base", {kRows, kAny});
    if (base->shape(1) == 0) throw py::value_error("base must hold at least the root");
    row.base = data<std::int32_t>(*base);
    row.base_places = static_cast<std::size_t>(base->shape(1));
  }
  if (draws) {
    check_array<std::int32_t>(*draws, "draws", {py::ssize_t(dart::kDraws)});
    row.draws = data<std::int32_t>(*draws);
  }
  dart::TextSearchConfig config;
  config.nodes = static_cast<int>(out.shape(1)) - 1;
  config.depth = depth;
  std::copy_n(data<float>(trust), config.trust.size(), config.trust.begin());
  auto* const tree = static_cast<std::int32_t*>(out.mutable_data());
  py::gil_scoped_release release;
  dart::search_text(config, row, tree);
}

void count_followers(const py::array& tokens, std::size_t first, py::array& counts) {
  const auto text = vector_span<std::int32_t>(tokens, "tokens");
  check_array<std::uint32_t>(counts, "counts", {dart::kLongestMatch, 2});
  if (!counts.writeable()) throw py::value_error("counts must be writeable");
  auto& sums = *static_cast<dart::FollowerCounts*>(counts.mutable_data());
  py::gil_scoped_release release;
  dart::count_followers(text, first, sums);
}

}  // namespace

void bind_text(py::module_& m) {
  m.def("text_tree", &text_tree, py::arg("tokens"), py::arg("out"), py::kw_only(),
        py::arg("depth"), py::arg("trust"), py::arg("base") = py::none(),
        py::arg("draws") = py::none());
  m.def("count_followers", &count_followers, py::arg("tokens"), py::arg("first"),
        py::arg("counts"));
}
