#include "executor/cuda/resident_steps.h"

#include <utility>

namespace lapidary::cuda {
namespace {

constexpr const char* kPurpose = "one-token steps";

}  // namespace

ResidentModel DescribeResidentModel(const ModelPlan& plan, const DeviceWeights& weights,
                                    const KvLayout& layout, const std::vector<const float2*>& rope,
                                    const bf16* ple_inputs) {
  ResidentModel model;
  model.hidden = plan.hidden_size;
  model.vocab_size = plan.vocab_size;
  model.ple_width = plan.ple ? plan.ple->width : 0;
  model.ple_inputs = ple_inputs;
  model.final_norm = weights.final_norm;
  model.head = weights.embedding;
  for (const LayerPlan& layer : plan.layers) {
    const auto& own = weights.layers[layer.index];
    const auto& owner = weights.layers[layer.kv_layer];
    ResidentLayer& resident = model.layers.emplace_back();
    resident.qkv = own.attention.qkv_proj;
    resident.output = own.attention.o_proj;
    resident.gate_up = own.mlp.gate_up_proj;
    resident.down = own.mlp.down_proj;
    resident.ple_gate = own.ple.gate;
    resident.ple_projection = own.ple.projection;
    resident.input_norm = own.input_norm;
    resident.post_attention_norm = own.post_attention_norm;
    resident.pre_mlp_norm = own.pre_mlp_norm;
    resident.post_mlp_norm = own.post_mlp_norm;
    resident.ple_post_norm = own.ple.post_norm;
    resident.q_norm = own.attention.q_norm;
    resident.k_norm = own.attention.k_norm;
    resident.owner_k_norm = owner.attention.k_norm;
    resident.rope = rope[layer.index];
    resident.layer_offset = layout.layer_offset[layer.kv_layer];
    resident.scale = own.layer_scalar;
    resident.rotary_pairs = layer.rope.num_rotary_pairs;
    resident.num_heads = layer.num_heads;
    resident.num_kv_heads = layer.num_kv_heads;
    resident.head_dim = layer.head_dim;
    resident.mlp_width = layer.mlp_width;
    resident.window = layer.window;
    resident.group = KvGroupOf(layer.kind);
    resident.entry = layer.kv_entry;
    resident.kv_layer = layer.kv_layer;
    resident.k_is_v = layer.k_is_v;
  }
  return model;
}

std::unique_ptr<ResidentSteps> ResidentSteps::Create(const DeviceInfo& device,
                                                     ResidentModel model) {
  if (!ResidentStepSupports(device, model)) return nullptr;
  return std::unique_ptr<ResidentSteps>(new ResidentSteps(device, std::move(model)));
}

ResidentSteps::ResidentSteps(const DeviceInfo& device, ResidentModel model)
    : model_(std::move(model)), scratch_(ResidentScratchBytes(device, model_), kPurpose) {
  LAPIDARY_CUDA_CHECK(cudaMemset(scratch_.As<void>(), 0, scratch_.num_bytes()));
  const std::vector<std::byte> program = MakeResidentProgram(device, model_, scratch_.As<void>());
  program_ = DeviceBuffer(static_cast<int64_t>(program.size()), kPurpose);
  LAPIDARY_CUDA_CHECK(
      cudaMemcpy(program_.As<void>(), program.data(), program.size(), cudaMemcpyHostToDevice));
}

void ResidentSteps::Run(const LaunchContext& context, ResidentStepCall call) const {
  call.program = program_.As<void>();
  RunResidentStep(context, model_, call);
}

}  // namespace lapidary::cuda
