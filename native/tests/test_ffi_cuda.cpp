// The handler for NVIDIA GPUs, called as XLA calls it.
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "dart/cuda_runtime.h"
#include "dart/cuda_search.h"
#include "dart/search_handle.h"
#include "device_batch.h"
#include "ffi.h"
#include "xla/ffi/api/c_api.h"

// What XLA hands out to handlers.
struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error_Code code;
};
struct XLA_FFI_ExecutionContext {
  void* stream;
  std::int64_t run;
};

namespace {

XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->message, args->errc};
}
void message_of(XLA_FFI_Error_GetMessage_Args* args) { args->message = args->error->message.c_str(); }
void destroy_error(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }
XLA_FFI_Error* get_stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = args->ctx->stream;
  return nullptr;
}
XLA_FFI_Error* get_run(XLA_FFI_RunId_Get_Args* args) {
  args->run_id = args->ctx->run;
  return nullptr;
}

XLA_FFI_Api api() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = create_error;
  api.XLA_FFI_Error_GetMessage = message_of;
  api.XLA_FFI_Error_Destroy = destroy_error;
  api.XLA_FFI_Stream_Get = get_stream;
  api.XLA_FFI_RunId_Get = get_run;
  return api;
}

XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  return reinterpret_cast<XLA_FFI_Handler*>(dart_search_cuda_handler())(frame);
}

// A call, whose parts tests may change.
struct Call {
  Call(void* stream, std::int64_t run, const Batch& batch, const DeviceBatch& device)
      : context{stream, run}, search(device.search()) {
    const dart::PackedLayout& layout = batch.layout;
    packed = {layout.rows, layout.width};
    trees = {layout.rows, 4, search.nodes + 1};
    attributes = {{"candidates", layout.candidates}, {"context", layout.context},
                  {"draws", layout.draws},           {"first", layout.first},
                  {"levels", layout.levels},         {"pairs", layout.pairs}};
  }

  XLA_FFI_ExecutionContext context;
  dart::CudaSearch search;
  std::vector<std::int64_t> packed, trees;          // shapes
  std::map<std::string, std::int64_t> attributes;   // sorted, as XLA has them
};

struct Result {
  XLA_FFI_Error_Code code;
  std::string message;
};

Result run(Call call) {
  const auto buffer = [](const void* data, std::vector<std::int64_t>& shape) {
    return XLA_FFI_Buffer{XLA_FFI_Buffer_STRUCT_SIZE,
                          nullptr,
                          XLA_FFI_DataType_S32,
                          const_cast<void*>(data),
                          static_cast<std::int64_t>(shape.size()),
                          shape.data()};
  };
  std::vector<std::int64_t> scalar;
  XLA_FFI_Buffer handle = buffer(call.search.handle, scalar);
  XLA_FFI_Buffer packed = buffer(call.search.packed, call.packed);
  XLA_FFI_Buffer trees = buffer(call.search.trees, call.trees);
  XLA_FFI_ArgType argument_types[] = {XLA_FFI_ArgType_BUFFER, XLA_FFI_ArgType_BUFFER};
  void* arguments[] = {&handle, &packed};
  XLA_FFI_RetType result_type = XLA_FFI_RetType_BUFFER;
  void* results[] = {&trees};

  std::vector<XLA_FFI_Scalar> values;
  std::vector<XLA_FFI_ByteSpan> spans;
  for (auto& [name, value] : call.attributes) {
    values.push_back({XLA_FFI_DataType_S64, &value});
    spans.push_back({name.data(), name.size()});
  }
  std::vector<XLA_FFI_AttrType> attribute_types(values.size(), XLA_FFI_AttrType_SCALAR);
  std::vector<XLA_FFI_ByteSpan*> names;
  std::vector<void*> attributes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    names.push_back(&spans[i]);
    attributes.push_back(&values[i]);
  }

  const XLA_FFI_Api functions = api();
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &functions;
  frame.ctx = &call.context;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, 2, argument_types, arguments};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, 1, &result_type, results};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, static_cast<std::int64_t>(values.size()),
                 attribute_types.data(), names.data(), attributes.data()};
  XLA_FFI_Error* error = handler(&frame);
  if (error == nullptr) return {XLA_FFI_Error_Code_OK, ""};
  const Result result{error->code, error->message};
  delete error;
  return result;
}

bool is(const Result& result, XLA_FFI_Error_Code code, const std::string& message) {
  return result.code == code && result.message == message;
}

bool works(const Result& result) { return is(result, XLA_FFI_Error_Code_OK, ""); }

void test_without_a_runtime() {
  std::mt19937 random(0);
  const Batch batch(random, {});
  const DeviceBatch device(0, batch, 6);
  CHECK(is(run(Call(nullptr, new_run(), batch, device)), XLA_FFI_Error_Code_INTERNAL,
           "dart_search: no CUDA runtime was loaded"));
}

void test_not_to_be_recorded() {
  const XLA_FFI_Api functions = api();
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{
      {sizeof(XLA_FFI_Metadata_Extension), XLA_FFI_Extension_Metadata, nullptr}, &metadata};
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &functions;
  frame.extension_start = &extension.extension_base;
  metadata.traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  CHECK(handler(&frame) == nullptr);
  CHECK(metadata.traits == 0);
}

void test_trees() {
  std::mt19937 random(0);
  const TestStream stream;
  const dart::TreeSearch search(nullptr, config_of(6));
  const dart::SearchHandle handle(search);
  for (const bool pairs : {false, true}) {
    for (std::int64_t rows = 0; rows < 4; ++rows) {
      const Batch batch(random, {rows, 3, 5, pairs, pairs});
      const DeviceBatch device(handle.value(), batch, 6);
      CHECK(works(run(Call(stream, new_run(), batch, device))));
      stub::wait(stream);
      CHECK(device.trees() == batch.trees(search));
    }
  }
}

void test_other_layouts() {
  std::mt19937 random(0);
  const TestStream stream;
  const dart::TreeSearch search(nullptr, config_of(6));
  const dart::SearchHandle handle(search);
  const Batch batch(random, {4, 3, 5, true, true});
  const DeviceBatch device(handle.value(), batch, 6);
  const auto with = [&](auto change) {
    Call call(stream, new_run(), batch, device);
    change(call);
    return run(call);
  };
  const char* layout = "dart_search: packed candidates of another layout";
  for (const char* name : {"candidates", "draws", "first", "levels", "pairs"}) {
    const Result changed = with([&](Call& call) { call.attributes[name] += 1; });
    CHECK(is(changed, XLA_FFI_Error_Code_INVALID_ARGUMENT, layout));
  }
  const auto context = with([&](Call& call) { call.attributes["context"] = 0; });
  CHECK(is(context, XLA_FFI_Error_Code_INVALID_ARGUMENT, layout));
  const auto flat = with([&](Call& call) { call.packed = {call.packed[0] * call.packed[1]}; });
  CHECK(is(flat, XLA_FFI_Error_Code_INVALID_ARGUMENT, layout));

  const char* size = "dart_search: trees of another size";
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{
           {4, 4}, {3, 4, 7}, {4, 3, 7}, {4, 4, 0}, {1, 4, 4, 7}}) {
    const Result changed = with([&](Call& call) { call.trees = shape; });
    CHECK(is(changed, XLA_FFI_Error_Code_INVALID_ARGUMENT, size));
  }
  CHECK(stub::operations(stream).empty());
  CHECK(device.trees() == device.all(kUnwritten));
}

void test_errors_at_the_next_call() {
  std::mt19937 random(0);
  const TestStream stream;
  const dart::TreeSearch search(nullptr, config_of(6));
  const Batch batch(random, {});
  const std::int32_t gone = dart::SearchHandle(search).value();
  const DeviceBatch device(gone, batch, 6);
  const char* message = "dart_search: the search no longer exists";
  const std::int64_t one = new_run(), other = new_run();
  CHECK(works(run(Call(stream, one, batch, device))));
  stub::wait(stream);
  CHECK(device.trees() == device.all(0));
  CHECK(works(run(Call(stream, other, batch, device))));
  stub::wait(stream);
  CHECK(is(run(Call(stream, one, batch, device)), XLA_FFI_Error_Code_INTERNAL, message));
  CHECK(dart::take_search_error(gone) == message);  // the other run's
  CHECK(!dart::take_search_error(gone));
}

void test_refused_calls() {
  std::mt19937 random(0);
  const TestStream stream;
  const dart::TreeSearch search(nullptr, config_of(6));
  const dart::SearchHandle handle(search);
  const Batch batch(random, {});
  const DeviceBatch device(handle.value(), batch, 6);
  stub::fail(0);
  CHECK(is(run(Call(stream, new_run(), batch, device)), XLA_FFI_Error_Code_INTERNAL,
           std::string("dart_search: CUDA: ") + stub::kError));
  CHECK(works(run(Call(stream, new_run(), batch, device))));
  stub::wait(stream);
  CHECK(device.trees() == batch.trees(search));
}

}  // namespace

int main() {
  test_without_a_runtime();
  test_not_to_be_recorded();
  dart::load_cuda_runtime(DART_STUB_CUDA_RUNTIME);
  test_trees();
  test_other_layouts();
  test_errors_at_the_next_call();
  test_refused_calls();
  return failures == 0 ? 0 : 1;
}
