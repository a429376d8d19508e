#include "apps/npy.h"

namespace lapidary {

Result<NpyWriter> NpyWriter::Create(const std::filesystem::path& path, int64_t rows,
                                    int64_t columns) {
  std::ofstream file(path, std::ios::binary);
  if (!file) return MakeError("cannot write {}", path.string());
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic, version and length take 10 bytes; the data starts at a multiple of 64.
  constexpr size_t kPreamble = 10;
  header.resize((kPreamble + header.size() + 1 + 63) / 64 * 64 - kPreamble, ' ');
  header.back() = '\n';
  file.write("\x93NUMPY\x01\x00", 8);
  const uint16_t length = static_cast<uint16_t>(header.size());
  file.put(static_cast<char>(length & 0xff));
  file.put(static_cast<char>(length >> 8));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  return NpyWriter(path, std::move(file));
}

Status NpyWriter::Append(std::span<const float> values) {
  file_.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size_bytes()));
  file_.flush();
  if (!file_) return MakeError("cannot write {} (disk full?)", path_.string());
  return {};
}

}  // namespace lapidary
