// The product of a tile of rows with a panel, for the instructions of the namespace that includes
// this: Isa, its vectors and what is done to them. No guard: it is included once for each.

constexpr int kHalfBytes = 2;
constexpr int kRowBytes = 4 * kPanelRows;  // of codes: four of each row of the panel
constexpr int kParts = kPanelRows / Isa::kCols;

// Dot products of one part of a panel's rows with one run of each of kRows rows of x.
template <int kRows>
struct Dots {
  typename Isa::Dot dot[kRows];

  INLINE void Clear() { UNROLL for (int row = 0; row < kRows; ++row) dot[row].Clear(); }
  // Element `first` of the run is the first of four in `codes`.
  template <bool kSmall>
  INLINE void Add(typename Isa::Int codes, const int8_t* x, int64_t x_stride, int first) {
    UNROLL for (int row = 0; row < kRows; ++row) {
      dot[row].template Add<kSmall>(codes, Isa::Broadcast(x + row * x_stride + first));
    }
  }
  INLINE void AddSigned(typename Isa::Int codes, const int8_t* x, int64_t x_stride, int first) {
    UNROLL for (int row = 0; row < kRows; ++row) {
      dot[row].AddSigned(codes, Isa::Broadcast(x + row * x_stride + first));
    }
  }
};

// acc += float(dot - zero * sum) * (scale * x scale)
INLINE typename Isa::Float AddRun(typename Isa::Int dot, int32_t zero_sum,
                                  typename Isa::Float scale, const RunFactors& run,
                                  typename Isa::Float acc) {
  const auto exact = Isa::ToFloat(Isa::Sub(dot, Isa::Set(zero_sum)));
  return Isa::MulAdd(exact, Isa::Mul(scale, Isa::Set(run.scale)), acc);
}

// One block of a panel's part: adds it to acc[kRows].
template <DType kType, int kRows>
INLINE void AddBlock(const uint8_t* block, int part, const int8_t* x, int64_t x_stride,
                     const RunFactors* runs, int64_t runs_stride, typename Isa::Float* acc) {
  constexpr bool kHasMin = kType == DType::kPanel4Min || kType == DType::kPanel6Min;
  constexpr bool kIsFine = kType == DType::kPanel6Fine;
  constexpr bool kHasTop = kType == DType::kPanel6Min || kIsFine;
  constexpr int kZero = kType == DType::kPanel4   ? 8
                        : kIsFine                 ? 32
                        : kType == DType::kPanel8 ? Isa::kSignedZero
                                                  : 0;
  constexpr int kVectorBytes = kPanelRows * kHalfBytes;
  const auto halves = [&](int idx) {
    return Isa::LoadHalves(block + idx * kVectorBytes + part * Isa::kCols * kHalfBytes);
  };
  const uint8_t* codes =
      block + (kHasMin || kIsFine ? 2 : 1) * kVectorBytes + part * Isa::kCols * 4;
  Dots<kRows> low, high;  // of elements 0..15 and 16..31; of all but fine formats `low` has both
  low.Clear();
  if constexpr (kIsFine) high.Clear();
  if constexpr (kType == DType::kPanel8) {
    UNROLL for (int group = 0; group < 8; ++group) {
      low.AddSigned(Isa::Load(codes + group * kRowBytes), x, x_stride, 4 * group);
    }
  } else {
    typename Isa::Int top[2];
    if constexpr (kHasTop) {
      top[0] = Isa::Load(codes + 4 * kRowBytes);
      top[1] = Isa::Load(codes + 5 * kRowBytes);
    }
    UNROLL for (int group = 0; group < 4; ++group) {
      const auto both = Isa::Load(codes + group * kRowBytes);
      auto first = Isa::LowNibbles(both);
      auto second = Isa::HighNibbles(both);
      if constexpr (kHasTop) {
        first = Isa::WithTop(first, top[0], group);
        second = Isa::WithTop(second, top[1], group);
      }
      low.template Add<!kHasTop>(first, x, x_stride, 4 * group);
      (kIsFine ? high : low).template Add<!kHasTop>(second, x, x_stride, 16 + 4 * group);
    }
  }
  const auto scale = halves(0);
  UNROLL for (int row = 0; row < kRows; ++row) {
    const RunFactors& run = runs[row * runs_stride];
    const int32_t sum = kIsFine ? run.sum[0] : run.sum[0] + run.sum[1];
    acc[row] = AddRun(low.dot[row].Total(), kZero * sum, scale, run, acc[row]);
    if constexpr (kIsFine) {
      acc[row] = AddRun(high.dot[row].Total(), kZero * run.sum[1], halves(1), run, acc[row]);
    }
    if constexpr (kHasMin) {
      acc[row] = Isa::MulAdd(halves(1), Isa::Set(run.scaled_sum), acc[row]);
    }
  }
}

// y[kRows][16] of one panel.
template <DType kType, int kRows>
void Tile(const uint8_t* panel, const QuantisedRows& x, int64_t first_row, float* y,
          int64_t y_stride) {
  constexpr int64_t kBlockBytes = int64_t{PanelBlockBytes(kType)} * kPanelRows;
  typename Isa::Float acc[kParts][kRows];
  for (auto& part : acc) {
    for (auto& sum : part) sum = Isa::Set(0.0f);
  }
  const int64_t num_runs = x.num_runs();
  const int8_t* q = x.q + first_row * x.in;
  const RunFactors* runs = x.runs + first_row * num_runs;
  for (int64_t run = 0; run < num_runs; ++run) {
    UNROLL for (int part = 0; part < kParts; ++part) {
      AddBlock<kType, kRows>(panel, part, q, x.in, runs, num_runs, acc[part]);
    }
    // The panel behind this one: it lies directly behind.
    for (int64_t at = 0; at < kBlockBytes; at += 64) {
      __builtin_prefetch(panel + num_runs * kBlockBytes + at, 0, 2);
    }
    panel += kBlockBytes;
    q += kPanelBlock;
    ++runs;
  }
  for (int row = 0; row < kRows; ++row) {
    for (int part = 0; part < kParts; ++part) {
      Isa::Store(acc[part][row], y + row * y_stride + part * Isa::kCols);
    }
  }
}

// All rows of x, in tiles of kRows and what is left in smaller ones.
template <DType kType, int kRows = Isa::kMaxRows>
void Rows(const uint8_t* panel, const QuantisedRows& x, int64_t row, float* y, int64_t y_stride) {
  for (; row + kRows <= x.rows; row += kRows) {
    Tile<kType, kRows>(panel, x, row, y + row * y_stride, y_stride);
  }
  if constexpr (kRows > 1) {
    if (row < x.rows) Rows<kType, kRows / 2>(panel, x, row, y, y_stride);
  }
}

// The rows of x from `row` on.
void Panel(DType dtype, const uint8_t* panel, const QuantisedRows& x, int64_t row, float* y,
           int64_t y_stride) {
  switch (dtype) {
    case DType::kPanel4:
      return Rows<DType::kPanel4>(panel, x, row, y, y_stride);
    case DType::kPanel4Min:
      return Rows<DType::kPanel4Min>(panel, x, row, y, y_stride);
    case DType::kPanel6Min:
      return Rows<DType::kPanel6Min>(panel, x, row, y, y_stride);
    case DType::kPanel6Fine:
      return Rows<DType::kPanel6Fine>(panel, x, row, y, y_stride);
    default:
      return Rows<DType::kPanel8>(panel, x, row, y, y_stride);
  }
}
