// Convolutions whose kernels are mostly zeros, for XLA on CPUs: the handlers behind sparse_convolution.py.
//
// Images are [n, height, width, channels], as everywhere else. Here a strip of rows of 16 images at a time is rearranged
// so that the images come last: every load is then a whole vector, and a weight multiplies 16 images at once. Strips stay
// in the cache. Sums do not depend on the number of threads.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Images = ffi::Buffer<ffi::F32, 4>;  // [n, height, width, channels]
using Kernel = ffi::Buffer<ffi::F32, 4>;  // [height, width, channels, outputs]
using Mask = ffi::Buffer<ffi::PRED, 4>;

namespace {

constexpr int64_t LANES = 16;  // images
constexpr int64_t ROWS = 8;    // at most, of a strip

// With 16 floats on every machine: compilers split it into as many registers as it takes.
typedef float Floats __attribute__((vector_size(4 * LANES)));
struct Vector {
  Floats v;
};

// Uninitialized memory that a thread keeps for its next strip.
class Scratch {
 public:
  Vector* get(int64_t size) {
    if (size > size_) {
      memory_.reset(new Vector[size]);
      size_ = size;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<Vector[]> memory_;
  int64_t size_ = 0;
};

struct Shape {
  int64_t n, height, width, channels;
};

Shape shape_of(ffi::Span<const int64_t> d) { return {d[0], d[1], d[2], d[3]}; }

// How the rows of a result are divided among units of work: strips of all blocks of 16 images.
struct Strips {
  explicit Strips(Shape result)
      : images(result.n),
        height(result.height),
        per_block((height + ROWS - 1) / ROWS),
        rows((height + per_block - 1) / per_block),
        units((images + LANES - 1) / LANES * per_block) {}

  int64_t image(int64_t unit) const { return unit / per_block * LANES; }
  int64_t lanes(int64_t unit) const { return std::min(LANES, images - image(unit)); }
  int64_t row(int64_t unit) const { return unit % per_block * rows; }
  int64_t count(int64_t unit) const { return std::min(rows, height - row(unit)); }

  int64_t images, height, per_block, rows, units;
};

// work(0) ... work(units - 1), by the calling thread and by those of the pool that are free.
template <class Work>
void for_each(ffi::ThreadPool& pool, int64_t units, const Work& work) {
  struct Progress {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable changed;
  };
  auto progress = std::make_shared<Progress>();
  // A thread that comes late finds no unit left, and does not touch `work`, which may be gone.
  auto run = [progress, units, &work] {
    for (int64_t unit; (unit = progress->next++) < units;) {
      work(unit);
      std::lock_guard<std::mutex> lock(progress->mutex);
      if (++progress->done == units) progress->changed.notify_one();
    }
  };
  for (int64_t i = 1; i < std::min(units, pool.num_threads()); i++) pool.Schedule([run] { run(); });
  run();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->changed.wait(lock, [&] { return progress->done == units; });
}

// 16 vectors of 16, transposed. Interleaving the halves of 256 numbers rotates the bits of their indices by one; after
// four times, rows and columns have changed places.
inline void transpose(Floats (&a)[LANES]) {
  for (int round = 0; round < 4; round++) {
    Floats b[LANES];
    for (int i = 0; i < LANES / 2; i++) {
      Floats one = a[i], two = a[i + LANES / 2];
      b[2 * i] = __builtin_shufflevector(one, two, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      b[2 * i + 1] = __builtin_shufflevector(one, two, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::copy(b, b + LANES, a);
  }
}

// Floats at any address.
inline Floats load(const float* p) {
  Floats v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Floats v) { __builtin_memcpy(p, &v, sizeof v); }

// One pixel of up to 16 images, `stride` floats apart -> one vector per channel, `step` vectors apart.
void images_last(const float* pixel, int64_t stride, int64_t lanes, int64_t channels, Vector* to, int64_t step) {
  int64_t c = 0;
  for (; lanes == LANES && c + LANES <= channels; c += LANES) {
    Floats a[LANES];
    for (int64_t i = 0; i < LANES; i++) a[i] = load(pixel + i * stride + c);
    transpose(a);
    for (int64_t i = 0; i < LANES; i++) to[(c + i) * step].v = a[i];
  }
  for (; c < channels; c++) {
    Floats a = {};
    for (int64_t i = 0; i < lanes; i++) a[i] = pixel[i * stride + c];
    to[c * step].v = a;
  }
}

// The inverse.
void images_first(const Vector* from, int64_t step, int64_t channels, int64_t lanes, float* pixel, int64_t stride) {
  int64_t c = 0;
  for (; lanes == LANES && c + LANES <= channels; c += LANES) {
    Floats a[LANES];
    for (int64_t i = 0; i < LANES; i++) a[i] = from[(c + i) * step].v;
    transpose(a);
    for (int64_t i = 0; i < LANES; i++) store(pixel + i * stride + c, a[i]);
  }
  for (; c < channels; c++)
    for (int64_t i = 0; i < lanes; i++) pixel[i * stride + c] = from[c * step].v[i];
}

// Rows of 16 images, with `margin` columns of zeros on both sides; rows outside of the images are zeros.
struct Rows {
  Rows(Shape shape, int64_t count, int64_t margin) : shape(shape), count(count), margin(margin) {}

  int64_t width() const { return shape.width + 2 * margin; }
  int64_t plane() const { return count * width(); }
  int64_t size() const { return shape.channels * plane(); }

  void fill(Vector* to, const float* images, int64_t image, int64_t lanes, int64_t first) const {
    const int64_t stride = shape.height * shape.width * shape.channels;
    for (int64_t r = 0; r < count; r++) {
      const bool inside = 0 <= first + r && first + r < shape.height;
      const float* row = images + image * stride + (first + r) * shape.width * shape.channels;
      for (int64_t x = 0; x < width(); x++) {
        Vector* here = to + r * width() + x;
        if (inside && margin <= x && x < margin + shape.width)
          images_last(row + (x - margin) * shape.channels, stride, lanes, shape.channels, here, plane());
        else
          for (int64_t c = 0; c < shape.channels; c++) here[c * plane()].v = Floats{};
      }
    }
  }

  Shape shape;
  int64_t count, margin;
};

// The surviving weights in the order of what they contribute to: unit u has those from begin[u] to begin[u + 1].
struct Survivors {
  std::vector<int64_t> begin, offset, place;  // offset into `Rows`, place in the kernel
  std::vector<float> weight;
};

// `flipped`: contributions to channels from outputs, through the kernel turned by 180 degrees.
Survivors survivors_of(const bool* mask, const float* weights, Shape kernel, const Rows& rows, bool flipped) {
  const auto [height, width, channels, outputs] = kernel;
  const int64_t area = height * width, units = flipped ? channels : outputs;
  Survivors found;
  found.begin.assign(units + 1, 0);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < area * channels * outputs; i++)
    if (mask[i]) {
      places.push_back(i);
      found.begin[(flipped ? i / outputs % channels : i % outputs) + 1]++;
    }
  for (int64_t u = 0; u < units; u++) found.begin[u + 1] += found.begin[u];
  found.offset.resize(places.size());
  found.place.resize(places.size());
  found.weight.resize(places.size());
  std::vector<int64_t> next(found.begin.begin(), found.begin.end() - 1);
  for (int64_t i : places) {
    const int64_t o = i % outputs, c = i / outputs % channels, tap = i / outputs / channels;
    const int64_t turned = flipped ? area - 1 - tap : tap, at = next[flipped ? c : o]++;
    found.offset[at] = (flipped ? o : c) * rows.plane() + turned / width * rows.width() + turned % width;
    found.place[at] = i;
    found.weight[at] = weights ? weights[i] : 0;
  }
  return found;
}

// X neighboring pixels of one unit.
template <int X>
inline void pixels(const Vector* from, const int64_t* offset, const float* weight, int64_t count, Vector* to) {
  Floats sum[X] = {};
  for (int64_t k = 0; k < count; k++)
    for (int x = 0; x < X; x++) sum[x] += weight[k] * from[offset[k] + x].v;
  for (int x = 0; x < X; x++) to[x].v = sum[x];
}

#ifdef __AVX512F__
constexpr int MANY = 12, SOME = 6;  // as many sums as there are registers for
#else
constexpr int MANY = 6, SOME = 3;
#endif

void row_of_pixels(const Vector* from, const Survivors& list, int64_t unit, int64_t width, Vector* to) {
  const int64_t begin = list.begin[unit], count = list.begin[unit + 1] - begin;
  const int64_t* offset = &list.offset[begin];
  const float* weight = &list.weight[begin];
  int64_t x = 0;
  for (; x + MANY <= width; x += MANY) pixels<MANY>(from + x, offset, weight, count, to + x);
  for (; x + SOME <= width; x += SOME) pixels<SOME>(from + x, offset, weight, count, to + x);
  for (; x + 2 <= width; x += 2) pixels<2>(from + x, offset, weight, count, to + x);
  for (; x < width; x++) pixels<1>(from + x, offset, weight, count, to + x);
}

// The convolution; `flipped`: its transpose with respect to the images.
ffi::Error conv(ffi::ThreadPool pool, Images x, Kernel kernel, Mask mask, ffi::Result<Images> y, bool flipped) {
  const Shape in = shape_of(x.dimensions()), out = shape_of(y->dimensions()), window = shape_of(kernel.dimensions());
  const int64_t margin_y = flipped ? window.n - 1 : 0, margin_x = flipped ? window.height - 1 : 0;
  const Strips strips(out);
  const Rows rows(in, strips.rows + window.n - 1, margin_x);
  const Survivors list = survivors_of(mask.typed_data(), kernel.typed_data(), window, rows, flipped);
  const int64_t stride = out.height * out.width * out.channels;
  for_each(pool, strips.units, [&](int64_t unit) {
    static thread_local Scratch scratch, line;
    Vector* strip = scratch.get(rows.size());
    Vector* to = line.get(out.channels * out.width);
    rows.fill(strip, x.typed_data(), strips.image(unit), strips.lanes(unit), strips.row(unit) - margin_y);
    for (int64_t r = 0; r < strips.count(unit); r++) {
      for (int64_t o = 0; o < out.channels; o++)
        row_of_pixels(strip + r * rows.width(), list, o, out.width, to + o * out.width);
      float* row = y->typed_data() + strips.image(unit) * stride + (strips.row(unit) + r) * out.width * out.channels;
      for (int64_t i = 0; i < out.width; i++)
        images_first(to + i, out.width, out.channels, strips.lanes(unit), row + i * out.channels, stride);
    }
  });
  return ffi::Error::Success();
}

inline float sum_of(Floats v) {
  float sum = 0;
  for (int64_t i = 0; i < LANES; i++) sum += v[i];
  return sum;
}

// The sum over all pixels of a strip of x * g.
float product(const Vector* x, int64_t step, const Vector* g, int64_t rows, int64_t width) {
  Floats a = {}, b = {}, c = {}, d = {};
  for (int64_t r = 0; r < rows; r++, x += step, g += width) {
    int64_t i = 0;
    for (; i + 4 <= width; i += 4) {
      a += x[i].v * g[i].v;
      b += x[i + 1].v * g[i + 1].v;
      c += x[i + 2].v * g[i + 2].v;
      d += x[i + 3].v * g[i + 3].v;
    }
    for (; i < width; i++) a += x[i].v * g[i].v;
  }
  return sum_of((a + b) + (c + d));
}

// The transpose of the convolution with respect to the kernel; zero where the mask is.
ffi::Error conv_to_kernel(ffi::ThreadPool pool, Images x, Images g, Mask mask, ffi::Result<Kernel> kernel) {
  const Shape in = shape_of(x.dimensions()), out = shape_of(g.dimensions()), window = shape_of(mask.dimensions());
  const Strips strips(out);
  const Rows inputs(in, strips.rows + window.n - 1, 0), outputs(out, strips.rows, 0);
  const Survivors list = survivors_of(mask.typed_data(), nullptr, window, inputs, false);
  const int64_t count = list.place.size();
  std::vector<float> parts(strips.units * count);
  for_each(pool, strips.units, [&](int64_t unit) {
    static thread_local Scratch one, two;
    Vector *from = one.get(inputs.size()), *to = two.get(outputs.size());
    inputs.fill(from, x.typed_data(), strips.image(unit), strips.lanes(unit), strips.row(unit));
    outputs.fill(to, g.typed_data(), strips.image(unit), strips.lanes(unit), strips.row(unit));
    for (int64_t o = 0; o < out.channels; o++)
      for (int64_t k = list.begin[o]; k < list.begin[o + 1]; k++)
        parts[unit * count + k] = product(from + list.offset[k], inputs.width(), to + o * outputs.plane(),
                                          strips.count(unit), out.width);
  });
  float* weights = kernel->typed_data();
  std::fill(weights, weights + kernel->element_count(), 0.0f);
  for (int64_t unit = 0; unit < strips.units; unit++)
    for (int64_t k = 0; k < count; k++) weights[list.place[k]] += parts[unit * count + k];
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(nttzoo_sparse_conv, conv,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Images>()
                                  .Arg<Kernel>()
                                  .Arg<Mask>()
                                  .Ret<Images>()
                                  .Attr<bool>("flipped"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(nttzoo_sparse_conv_to_kernel, conv_to_kernel,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Images>()
                                  .Arg<Images>()
                                  .Arg<Mask>()
                                  .Ret<Kernel>());
