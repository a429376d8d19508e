// What a resident step keeps in device memory, in closed form. No CUDA types: memory is planned
// where there is no GPU, too.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/host_device.h"

namespace lapidary::cuda {

inline constexpr int kSplitHeads = 16;  // of a split of attention, at most
inline constexpr int kSplitSumBytes = kSplitHeads * 512 * 4;

inline constexpr int kResidentMaxExperts = 128;
inline constexpr int kResidentMaxRanks = 8;  // chosen experts of a row

// Of a program: how wide what its blocks exchange is, in values.
struct ResidentExchanges {
  int hidden = 0;
  int max_qkv_rows = 0;
  int max_attended = 0;  // num_heads * head_dim
  int max_mlp_width = 0;
  int min_mlp_width = 0;
  int ple_width = 0;              // 0: none
  int num_experts = 0;            // 0: none
  int expert_values = 0;          // activations of all chosen ones
  std::vector<int> entry_values;  // by layer: of a token's new entry
  int num_phases = 0;
  int granule = 2;  // rows that blocks are dealt at a time: 8 where weights are tiled

  bool operator==(const ResidentExchanges&) const = default;
};

// Blocks of the launch: an SM each, and a part of the outputs of attention and MLP and of the
// activations for each block (resident_exchange.cuh builds on that).
inline int ResidentBlocks(int num_sms, int hidden, int min_mlp_width, int granule) {
  return std::min({num_sms, hidden / granule, min_mlp_width / granule});
}

// Device memory behind the scratch pointer, in bytes. An exchange of each kind has packets of its
// own.
struct ResidentScratchLayout {
  struct Block {
    int64_t first = 0;  // output of the first product: of q, k and v; the activations
    int64_t second = 0;
  };
  std::array<Block, 3> blocks;  // attention, MLP, per-layer embedding
  int64_t attended = 0;
  int64_t expert_logits = 0;
  Block experts;
  int64_t partial_sums = 0;
  int64_t partial_weights = 0;
  std::vector<int64_t> kept;  // by layer, for owners of KV
  int64_t number = 0;
  int64_t total = 0;

  ResidentScratchLayout(int num_sms, const ResidentExchanges& exchanges) {
    const int first_widths[] = {exchanges.max_qkv_rows, exchanges.max_mlp_width,
                                exchanges.ple_width};
    for (size_t idx = 0; idx < blocks.size(); ++idx) {
      blocks[idx].first = Place(PacketBytes(first_widths[idx]));
      blocks[idx].second = Place(PacketBytes(exchanges.hidden));
    }
    attended = Place(PacketBytes(exchanges.max_attended));
    if (exchanges.num_experts > 0) {
      expert_logits = Place(PacketBytes(2 * exchanges.num_experts));  // one value in a packet
      experts.first = Place(PacketBytes(exchanges.expert_values));
      experts.second = Place(PacketBytes(exchanges.hidden));
    }
    const int64_t splits =  // one each
        ResidentBlocks(num_sms, exchanges.hidden, exchanges.min_mlp_width, exchanges.granule);
    partial_sums = Place(splits * kSplitSumBytes);
    partial_weights = Place(splits * kSplitHeads * 16);
    for (const int values : exchanges.entry_values) kept.push_back(Place(PacketBytes(values)));
    number = Place(sizeof(uint32_t));
  }

 private:
  // Two values and a number in 8 bytes.
  static int64_t PacketBytes(int values) { return int64_t{values} / 2 * 8; }
  int64_t Place(int64_t num_bytes) {
    const int64_t at = total;
    total += (num_bytes + 127) / 128 * 128;
    return at;
  }
};

// Where in a ResidentProgram what lies behind its header and phases.
struct ResidentProgramLayout {
  static constexpr int64_t kHeaderBytes = 128;  // sizeof(ResidentProgram)
  static constexpr int64_t kPhaseBytes = 208;   // sizeof(ResidentPhase)
  static constexpr int64_t kMatrixBytes = 48;   // sizeof(ResidentMatrix)
  static constexpr int64_t kKvBytes = 16;       // sizeof(ResidentKv)
  static constexpr int64_t kExpertBytes = 64;   // sizeof(ResidentExperts)
  static constexpr int64_t kMapBytes = 128;     // sizeof(CUtensorMap)

  LAPIDARY_HOST_DEVICE static constexpr int64_t Align(int64_t offset) {
    return (offset + 127) / 128 * 128;
  }
  LAPIDARY_HOST_DEVICE static constexpr int64_t Matrices(int64_t phases) {
    return Align(kHeaderBytes + phases * kPhaseBytes);
  }
  LAPIDARY_HOST_DEVICE static constexpr int64_t Kv(int64_t phases) {
    return Align(Matrices(phases) + phases * kMatrixBytes);
  }
  LAPIDARY_HOST_DEVICE static constexpr int64_t Experts(int64_t phases) {
    return Align(Kv(phases) + phases * kKvBytes);
  }
  LAPIDARY_HOST_DEVICE static constexpr int64_t Maps(int64_t phases) {
    return Align(Experts(phases) + phases * kExpertBytes);
  }
  // Two maps for each phase.
  LAPIDARY_HOST_DEVICE static constexpr int64_t Total(int64_t phases) {
    return Maps(phases) + phases * 2 * kMapBytes;
  }
};

}  // namespace lapidary::cuda
