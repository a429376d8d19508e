#include "gguf/gguf_header.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "tensor/tensor_view.h"

namespace lapidary {
namespace {

// Far beyond any model, and small enough that their lists cost little.
constexpr uint64_t kMaxPairs = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 17;
constexpr uint64_t kMaxNameBytes = 1 << 10;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kDefaultAlignment = 32;

// 0: a string or an array, whose size is not fixed.
int FixedSize(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

struct TensorType {
  uint32_t id;
  DType dtype;
};
constexpr TensorType kTensorTypes[] = {
    {0, DType::kF32},   {1, DType::kF16},   {2, DType::kQ4_0},    {3, DType::kQ4_1},
    {6, DType::kQ5_0},  {7, DType::kQ5_1},  {8, DType::kQ8_0},    {12, DType::kQ4_K},
    {13, DType::kQ5_K}, {14, DType::kQ6_K}, {20, DType::kIQ4_NL}, {23, DType::kIQ4_XS},
    {24, DType::kI8},   {25, DType::kI16},  {26, DType::kI32},    {27, DType::kI64},
    {28, DType::kF64},  {30, DType::kBF16},
};

// The names of types that exist and are not read here.
const char* UnreadTypeName(uint32_t id) {
  switch (id) {
    case 9:
      return "Q8_1";
    case 10:
      return "Q2_K";
    case 11:
      return "Q3_K";
    case 15:
      return "Q8_K";
    case 16:
      return "IQ2_XXS";
    case 17:
      return "IQ2_XS";
    case 18:
      return "IQ3_XXS";
    case 19:
      return "IQ1_S";
    case 21:
      return "IQ3_S";
    case 22:
      return "IQ2_S";
    case 29:
      return "IQ1_M";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 39:
      return "MXFP4";
    case 40:
      return "NVFP4";
    default:
      return nullptr;
  }
}

template <typename T>
T Read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Walks the file from its start and never beyond its end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, std::string_view name) : file_(file), name_(name) {}

  uint64_t at() const { return at_; }
  std::span<const std::byte> From(uint64_t begin) const {
    return file_.subspan(begin, at_ - begin);
  }

  Result<std::span<const std::byte>> Take(uint64_t count) {
    if (count > file_.size() - at_) {
      return MakeError("{}: the file ends inside its header; it may be cut off", name_);
    }
    const auto bytes = file_.subspan(at_, count);
    at_ += count;
    return bytes;
  }
  template <typename T>
  Result<T> Number() {
    ASSIGN_OR_RETURN(const auto bytes, Take(sizeof(T)));
    return Read<T>(bytes.data());
  }
  Result<std::string_view> String() {
    ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>());
    ASSIGN_OR_RETURN(const auto bytes, Take(length));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  Result<std::string> Name(const char* what) {
    ASSIGN_OR_RETURN(const std::string_view text, String());
    if (text.empty() || text.size() > kMaxNameBytes) {
      return MakeError("{}: {} of {} bytes; 1 to {} are possible", name_, what, text.size(),
                       kMaxNameBytes);
    }
    return std::string(text);
  }

 private:
  std::span<const std::byte> file_;
  std::string_view name_;
  uint64_t at_ = 0;
};

Result<GgufType> ReadType(Cursor& cursor, std::string_view name, const std::string& key) {
  ASSIGN_OR_RETURN(const uint32_t type, cursor.Number<uint32_t>());
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return MakeError("{}: '{}' has the unknown value type {}", name, key, type);
  }
  return static_cast<GgufType>(type);
}

Result<GgufValue> ReadValue(Cursor& cursor, std::string_view name, const std::string& key) {
  ASSIGN_OR_RETURN(const GgufType type, ReadType(cursor, name, key));
  GgufType element = type;
  uint64_t count = 1;
  if (type == GgufType::kArray) {
    ASSIGN_OR_RETURN(element, ReadType(cursor, name, key));
    if (element == GgufType::kArray) return MakeError("{}: '{}' nests arrays", name, key);
    ASSIGN_OR_RETURN(count, cursor.Number<uint64_t>());
  }
  const uint64_t begin = cursor.at();
  const uint64_t size = static_cast<uint64_t>(FixedSize(element));
  if (size == 0) {
    for (uint64_t idx = 0; idx < count; ++idx) {
      ASSIGN_OR_RETURN(const std::string_view text, cursor.String());
      static_cast<void>(text);
    }
  } else {
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes)) {
      return MakeError("{}: '{}' claims {} elements", name, key, count);
    }
    ASSIGN_OR_RETURN(const auto taken, cursor.Take(bytes));
    static_cast<void>(taken);
  }
  return GgufValue(type, element, count, cursor.From(begin));
}

Status ReadMetadata(Cursor& cursor, uint64_t num_pairs, std::string_view name, GgufHeader& header) {
  for (uint64_t idx = 0; idx < num_pairs; ++idx) {
    ASSIGN_OR_RETURN(const std::string key, cursor.Name("a metadata key"));
    ASSIGN_OR_RETURN(const GgufValue value, ReadValue(cursor, name, key));
    if (!header.metadata.emplace(key, value).second) {
      return MakeError("{}: '{}' is there twice", name, key);
    }
  }
  return {};
}

Result<DType> ReadTensorType(Cursor& cursor, std::string_view name, const std::string& tensor) {
  ASSIGN_OR_RETURN(const uint32_t id, cursor.Number<uint32_t>());
  for (const TensorType& type : kTensorTypes) {
    if (type.id == id) return type.dtype;
  }
  if (const char* type_name = UnreadTypeName(id)) {
    return MakeError(
        "{}: tensor '{}' is {}, which is not supported; use a file with Q4_0, Q4_K, Q5_K, Q6_K, "
        "Q8_0 or IQ4 types",
        name, tensor, type_name);
  }
  return MakeError("{}: tensor '{}' has the unknown type {}", name, tensor, id);
}

// Leaves the offset, relative to the data, in `begin`.
Result<GgufTensor> ReadTensor(Cursor& cursor, std::string_view name, uint64_t file_size) {
  GgufTensor tensor;
  ASSIGN_OR_RETURN(tensor.name, cursor.Name("a tensor name"));
  ASSIGN_OR_RETURN(const uint32_t num_dims, cursor.Number<uint32_t>());
  if (num_dims == 0 || num_dims > kMaxDims) {
    return MakeError("{}: tensor '{}' has {} dims; 1 to {} are possible", name, tensor.name,
                     num_dims, kMaxDims);
  }
  uint64_t num_elements = 1;
  for (uint32_t dim = 0; dim < num_dims; ++dim) {
    ASSIGN_OR_RETURN(const uint64_t extent, cursor.Number<uint64_t>());
    if (extent == 0) {
      return MakeError("{}: tensor '{}' has a dim of 0", name, tensor.name);
    }
    // No format has more than 8 elements in a byte, so this bounds them by the file.
    if (__builtin_mul_overflow(num_elements, extent, &num_elements) ||
        num_elements / 8 > file_size) {
      return MakeError("{}: tensor '{}' has a dim of {}, more than the file can hold", name,
                       tensor.name, extent);
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  ASSIGN_OR_RETURN(tensor.dtype, ReadTensorType(cursor, name, tensor.name));
  const DTypeBlock block = BlockOf(tensor.dtype);
  if (tensor.shape.back() % block.elements != 0) {
    return MakeError("{}: tensor '{}' has rows of {}, no multiple of the {} elements of a {} block",
                     name, tensor.name, tensor.shape.back(), block.elements,
                     DTypeName(tensor.dtype));
  }
  ASSIGN_OR_RETURN(tensor.begin, cursor.Number<uint64_t>());
  return tensor;
}

Result<uint64_t> Alignment(const GgufHeader& header, std::string_view name) {
  const auto it = header.metadata.find("general.alignment");
  if (it == header.metadata.end()) return kDefaultAlignment;
  const auto values = it->second.Ints();
  if (!values || it->second.is_array() || values->front() < 8 ||
      !std::has_single_bit(static_cast<uint64_t>(values->front())) ||
      static_cast<uint64_t>(values->front()) > kMaxAlignment) {
    return MakeError("{}: general.alignment must be a power of two from 8 to {}", name,
                     kMaxAlignment);
  }
  return static_cast<uint64_t>(values->front());
}

// Turns offsets into byte ranges of the file and sorts by them.
Status PlaceTensors(uint64_t data_begin, uint64_t alignment, uint64_t file_size,
                    std::string_view name, std::vector<GgufTensor>& tensors) {
  for (GgufTensor& tensor : tensors) {
    const uint64_t bytes =
        static_cast<uint64_t>(TensorView{nullptr, tensor.dtype, tensor.shape}.num_bytes());
    if (tensor.begin % alignment != 0) {
      return MakeError("{}: tensor '{}' begins at {}, no multiple of the alignment {}", name,
                       tensor.name, tensor.begin, alignment);
    }
    if (data_begin > file_size || tensor.begin > file_size - data_begin ||
        bytes > file_size - data_begin - tensor.begin) {
      return MakeError("{}: tensor '{}' ends behind the end of the file, which may be cut off",
                       name, tensor.name);
    }
    tensor.begin += data_begin;
    tensor.end = tensor.begin + bytes;
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.begin < b.begin; });
  for (size_t idx = 1; idx < tensors.size(); ++idx) {
    if (tensors[idx].begin < tensors[idx - 1].end) {
      return MakeError("{}: tensors '{}' and '{}' overlap", name, tensors[idx - 1].name,
                       tensors[idx].name);
    }
  }
  return {};
}

}  // namespace

uint32_t GgufTypeId(DType dtype) {
  for (const TensorType& type : kTensorTypes) {
    if (type.dtype == dtype) return type.id;
  }
  CHECK(false) << DTypeName(dtype);
  return 0;
}

std::optional<std::vector<int64_t>> GgufValue::Ints() const {
  std::vector<int64_t> values;
  const int size = FixedSize(element_);
  if (size == 0 || element_ == GgufType::kF32 || element_ == GgufType::kF64) return std::nullopt;
  values.reserve(count_);
  for (uint64_t idx = 0; idx < count_; ++idx) {
    const std::byte* at = bytes_.data() + idx * size;
    switch (element_) {
      case GgufType::kI8:
        values.push_back(Read<int8_t>(at));
        break;
      case GgufType::kU16:
        values.push_back(Read<uint16_t>(at));
        break;
      case GgufType::kI16:
        values.push_back(Read<int16_t>(at));
        break;
      case GgufType::kU32:
        values.push_back(Read<uint32_t>(at));
        break;
      case GgufType::kI32:
        values.push_back(Read<int32_t>(at));
        break;
      case GgufType::kU64:
        // Beyond what a count can be, either way.
        values.push_back(static_cast<int64_t>(std::min<uint64_t>(Read<uint64_t>(at), INT64_MAX)));
        break;
      case GgufType::kI64:
        values.push_back(Read<int64_t>(at));
        break;
      default:  // kU8, kBool
        values.push_back(Read<uint8_t>(at));
    }
  }
  return values;
}

std::optional<std::vector<double>> GgufValue::Numbers() const {
  std::vector<double> values;
  if (const auto ints = Ints()) {
    values.assign(ints->begin(), ints->end());
    return values;
  }
  if (element_ != GgufType::kF32 && element_ != GgufType::kF64) return std::nullopt;
  const int size = FixedSize(element_);
  values.reserve(count_);
  for (uint64_t idx = 0; idx < count_; ++idx) {
    const std::byte* at = bytes_.data() + idx * size;
    values.push_back(element_ == GgufType::kF32 ? double{Read<float>(at)} : Read<double>(at));
  }
  return values;
}

std::optional<std::vector<std::string_view>> GgufValue::Strings() const {
  if (element_ != GgufType::kString) return std::nullopt;
  std::vector<std::string_view> values;
  const std::byte* at = bytes_.data();
  for (uint64_t idx = 0; idx < count_; ++idx) {
    const uint64_t length = Read<uint64_t>(at);
    values.emplace_back(reinterpret_cast<const char*>(at) + sizeof(length), length);
    at += sizeof(length) + length;
  }
  return values;
}

Result<GgufHeader> ParseGguf(std::span<const std::byte> file, std::string_view name) {
  Cursor cursor(file, name);
  ASSIGN_OR_RETURN(const auto magic, cursor.Take(4));
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) return MakeError("{}: not a GGUF file", name);
  ASSIGN_OR_RETURN(const uint32_t version, cursor.Number<uint32_t>());
  if (version != 2 && version != 3) {
    return MakeError("{}: GGUF version {} {}; 2 and 3 are supported", name, version,
                     (version & 0xffff) == 0 ? "(a big-endian file)" : "");
  }
  ASSIGN_OR_RETURN(const uint64_t num_tensors, cursor.Number<uint64_t>());
  ASSIGN_OR_RETURN(const uint64_t num_pairs, cursor.Number<uint64_t>());
  if (num_tensors > kMaxTensors || num_pairs > kMaxPairs) {
    return MakeError("{}: claims {} tensors and {} metadata pairs; {} and {} are possible", name,
                     num_tensors, num_pairs, kMaxTensors, kMaxPairs);
  }
  GgufHeader header;
  RETURN_IF_ERROR(ReadMetadata(cursor, num_pairs, name, header));
  for (uint64_t idx = 0; idx < num_tensors; ++idx) {
    ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(cursor, name, file.size()));
    header.tensors.push_back(std::move(tensor));
  }
  ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(header, name));
  const uint64_t data_begin = (cursor.at() + alignment - 1) / alignment * alignment;
  RETURN_IF_ERROR(PlaceTensors(data_begin, alignment, file.size(), name, header.tensors));
  return header;
}

}  // namespace lapidary
