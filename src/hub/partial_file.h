// A download in progress: a file of known length whose pieces arrive in any order, and which
// outlives its process.
//
//   [ the bytes, with holes where nothing is yet | how many bytes of each piece are there | mark ]
//
// A count is written after the bytes that it counts, so whatever ends the process, what the file
// says to be there is there (not so if the machine itself goes down: sums are checked at the end).
// No other client of the cache takes such a file for its own: it has a name of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary::hub {

class PartialFile {
 public:
  static constexpr int64_t kPieceBytes = int64_t{32} << 20;

  // Goes on with the file that is there, if it is one of this length; else begins anew. One process
  // at a time may have it open (FileLock).
  static Result<PartialFile> Open(const std::filesystem::path& path, int64_t num_bytes,
                                  int64_t piece_bytes = kPieceBytes);
  PartialFile(PartialFile&& other) noexcept;
  PartialFile& operator=(PartialFile&& other) = delete;
  ~PartialFile();

  // What Open would find there, of a file that fits.
  static int64_t BytesThere(const std::filesystem::path& path, int64_t num_bytes,
                            int64_t piece_bytes = kPieceBytes);

  int64_t num_bytes() const { return num_bytes_; }
  int num_pieces() const { return static_cast<int>(counts_.size()); }
  int64_t num_written() const;
  bool is_complete() const { return num_written() == num_bytes_; }

  // [begin, end) of a piece's missing bytes, which are its last ones.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };
  Range Missing(int piece) const;

  // The next bytes of a piece; not more than are missing. Threads may write different pieces.
  Status Append(int piece, std::string_view bytes);
  // Forgets all that was written.
  Status Reset();

  // Cuts off what follows the bytes: the file is whole, and no PartialFile any more.
  Status Finish();

 private:
  PartialFile(int file, std::filesystem::path path, int64_t num_bytes, int64_t piece_bytes);

  Status Write(std::string_view bytes, int64_t offset) const;
  int64_t PieceLength(int piece) const;
  bool ReadCounts();
  Status WriteCount(int piece) const;

  int file_;
  std::filesystem::path path_;
  int64_t num_bytes_;
  int64_t piece_bytes_;
  std::vector<int64_t> counts_;  // [num_pieces]
};

}  // namespace lapidary::hub
