/* Threads share the blocks of a batch. Each block adds its gradient to one of `slots` sums, and these are added in
 * order: whatever the number of threads, the same floats are added in the same order. */
#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { EVALUATE = 0, GRADIENT = 1, TRAIN = 2 };

/* As nttzoo.codegen.training.library has it. */
struct job {
    struct net net;
    float *theta, *back;
    const int64_t *back_from;
    int64_t size, back_size, partial_size;
    const void *images;
    const float *levels;
    const int32_t *labels;
    const int64_t *order;
    int64_t batch, steps, slots, threads, mode, loss;
    struct rule rule;
    const float *rates;
    double *powers; /* beta1 and beta2 to the number of steps */
    float *first, *second, *gradient;
    vec *arenas, *partials;
    uint64_t key;
    double *losses;
    int64_t *hits;
    float *logits;
};

struct team {
    struct job *job;
    double *loss;
    int64_t *hits;
    int64_t next, waiting, turn, done, bad;
    pthread_mutex_t lock;
    pthread_cond_t all_there;
};

/* Waits awake for about as long as waking up takes, and then asleep: on a busy machine the thread that is waited for
   needs this one's core. */
static void wait_for_all(struct team *team) {
    enum { SPINS = 2000, YIELDS = 100 };
    const int64_t threads = team->job->threads;
    const int64_t turn = __atomic_load_n(&team->turn, __ATOMIC_ACQUIRE);
    int64_t tries;
    if (threads == 1) return;
    if (__atomic_add_fetch(&team->waiting, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&team->waiting, 0, __ATOMIC_RELAXED);
        pthread_mutex_lock(&team->lock);
        __atomic_store_n(&team->turn, turn + 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&team->all_there);
        pthread_mutex_unlock(&team->lock);
        return;
    }
    for (tries = 0; tries < SPINS + YIELDS; tries++) {
        if (__atomic_load_n(&team->turn, __ATOMIC_ACQUIRE) != turn) return;
        if (tries >= SPINS) sched_yield();
    }
    pthread_mutex_lock(&team->lock);
    while (__atomic_load_n(&team->turn, __ATOMIC_ACQUIRE) == turn) pthread_cond_wait(&team->all_there, &team->lock);
    pthread_mutex_unlock(&team->lock);
}

static void run_slot(struct team *team, int64_t step, int64_t slot, int64_t thread) {
    const struct job *job = team->job;
    const int64_t blocks = (job->batch + BLOCK - 1) / BLOCK;
    const int64_t *chosen = job->order + step * job->batch;
    vec *m = job->arenas + thread * ARENA;
    const float scale = (float)(1.0 / (double)job->batch);
    struct block at;
    int64_t b;
    int e, k;
    at.gradient = job->gradient + slot * job->size;
    at.partial = job->partials + thread * job->partial_size;
    at.train = job->mode == TRAIN;
#if BLOCK > 1
    for (e = 0; e < BLOCK; e++) at.lanes[e] = (uint32_t)e * 0x7feb352du;
#else
    at.lanes = 0;
#endif
    if (job->mode != EVALUATE) memset(at.gradient, 0, (size_t)job->size * sizeof(float));
    for (b = slot; b < blocks; b += job->slots) {
        const int n = job->batch - b * BLOCK < BLOCK ? (int)(job->batch - b * BLOCK) : BLOCK;
        int32_t labels[BLOCK];
        for (e = 0; e < n; e++) labels[e] = job->labels ? job->labels[chosen[b * BLOCK + e]] : 0;
        at.key = mix(job->key + (uint64_t)step * 0x100000001b3u + (uint64_t)b * 0x9e3779b1u);
        load(m, job->images, job->levels, chosen + b * BLOCK, n);
        forward(m, &job->net, &at);
        if (job->logits) {
            for (e = 0; e < n; e++) {
                for (k = 0; k < OUTPUTS; k++) {
                    job->logits[(b * BLOCK + e) * OUTPUTS + k] = LANE(m[output_place[k]], e);
                }
            }
        }
        if (job->labels) {
            loss(m, labels, n, (int)job->loss, scale, job->mode != EVALUATE, team->loss + slot, team->hits + slot);
        }
        if (job->mode != EVALUATE) backward(m, &job->net, &at);
    }
}

static void work(struct team *team, int64_t thread) {
    struct job *job = team->job;
    const int64_t threads = job->threads;
    const int64_t begin = job->size * thread / threads, end = job->size * (thread + 1) / threads;
    const int64_t back = job->back_size * thread / threads, back_end = job->back_size * (thread + 1) / threads;
    int64_t step, slot, i;
    for (step = 0; step < job->steps; step++) {
        if (thread == 0) {
            for (slot = 0; slot < job->slots; slot++) team->loss[slot] = 0.0, team->hits[slot] = 0;
            __atomic_store_n(&team->next, 0, __ATOMIC_RELAXED);
        }
        if (job->mode != EVALUATE) for (i = back; i < back_end; i++) job->back[i] = job->theta[job->back_from[i]];
        wait_for_all(team);
        while ((slot = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < job->slots) {
            run_slot(team, step, slot, thread);
        }
        wait_for_all(team);
        if (thread == 0) {
            double sum = 0.0;
            int64_t hits = 0;
            for (slot = 0; slot < job->slots; slot++) sum += team->loss[slot], hits += team->hits[slot];
            job->losses[step] = sum / (double)job->batch;
            job->hits[step] = hits;
            if (job->labels && !(sum - sum == 0.0)) __atomic_store_n(&team->bad, 1, __ATOMIC_RELAXED);
        }
        if (job->mode != EVALUATE && !gather(job->gradient, job->slots, job->size, begin, end)) {
            __atomic_store_n(&team->bad, 1, __ATOMIC_RELAXED);
        }
        wait_for_all(team);
        if (__atomic_load_n(&team->bad, __ATOMIC_RELAXED)) break;
        if (job->mode == TRAIN) {
            const double power1 = job->powers[0] * (double)job->rule.beta1;
            const double power2 = job->powers[1] * (double)job->rule.beta2;
            update(&job->rule, job->theta, job->first, job->second, job->gradient, job->rates[step],
                   (float)(1.0 - power1), (float)(1.0 - power2), begin, end);
            wait_for_all(team);
            if (thread == 0) job->powers[0] = power1, job->powers[1] = power2;
        }
        wait_for_all(team);
        if (thread == 0) team->done = step + 1;
    }
}

struct member {
    struct team *team;
    int64_t thread;
};

static void *start(void *given) {
    struct member *member = given;
    pthread_mutex_lock(&member->team->lock);  /* until it is known how many threads there are */
    pthread_mutex_unlock(&member->team->lock);
    work(member->team, member->thread);
    return 0;
}

/* Runs the steps of a job, which has at most MOST slots; returns how many were done: fewer if a loss or gradient was
 * not finite. */
int64_t @NAME@_run(struct job *job) {
    enum { MOST = 64 };
    pthread_t threads[MOST];
    struct member members[MOST];
    double losses[MOST];
    int64_t hits[MOST], i;
    struct team team;
    memset(&team, 0, sizeof team);
    team.job = job, team.loss = losses, team.hits = hits;
    if (job->threads > MOST) job->threads = MOST;
    pthread_mutex_init(&team.lock, 0);
    pthread_cond_init(&team.all_there, 0);
    pthread_mutex_lock(&team.lock);
    for (i = 1; i < job->threads; i++) {
        members[i].team = &team, members[i].thread = i;
        if (pthread_create(threads + i, 0, start, members + i)) job->threads = i;  /* those that there are do it all */
    }
    pthread_mutex_unlock(&team.lock);
    work(&team, 0);
    for (i = 1; i < job->threads; i++) pthread_join(threads[i], 0);
    pthread_cond_destroy(&team.all_there);
    pthread_mutex_destroy(&team.lock);
    return team.done;
}
