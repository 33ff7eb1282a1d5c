package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	goredispool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redigopool "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

const (
	ttl   = 10 * time.Second
	eager = time.Millisecond
)

// A client with one setting.
type subject struct {
	name   string
	renews bool
	// Makes, for one goroutine, what locks a key and returns what unlocks it.
	lock func(key string) func() (unlock func())
}

// Each client keeps its own defaults, and those that poll also run with a retry after 1 ms.
func connect(url string) []subject {
	options, err := goredis.ParseURL(url)
	must(err)
	client := goredis.NewClient(options)
	// Its pool keeps no idle connection by default, so each call would open one.
	pool := &redis.Pool{MaxIdle: 32, Dial: func() (redis.Conn, error) { return redis.DialURL(url) }}
	onGoRedis := redsync.New(goredispool.NewPool(client))
	onRedigo := redsync.New(redigopool.NewPool(pool))
	often := []redsync.Option{redsync.WithTries(math.MaxInt), redsync.WithRetryDelay(eager)}
	return []subject{
		{"redsync 4.18 (Go)", false, redsyncLock(onGoRedis)},
		{"redsync 4.18 (Go), retry 1 ms", false, redsyncLock(onGoRedis, often...)},
		{"redsync 4.18 (Go), on redigo", false, redsyncLock(onRedigo)},
		{"redsync 4.18 (Go), on redigo, retry 1 ms", false, redsyncLock(onRedigo, often...)},
		{"bsm/redislock 0.9 (Go)", false, redislockLock(client, 100*time.Millisecond)},
		{"bsm/redislock 0.9 (Go), retry 1 ms", false, redislockLock(client, eager)},
		{"rueidislock 1.0 (Go)", true, rueidislockLock(url)},
	}
}

func redsyncLock(locks *redsync.Redsync, options ...redsync.Option) func(string) func() func() {
	options = append(options, redsync.WithExpiry(ttl))
	return func(key string) func() func() {
		mutex := locks.NewMutex("redsync:"+key, options...)
		return func() func() {
			// By default it gives up after 32 tries.
			for err := mutex.Lock(); err != nil; err = mutex.Lock() {
				var taken *redsync.ErrTaken
				if !errors.As(err, &taken) && !errors.Is(err, redsync.ErrFailed) {
					panic(err)
				}
			}
			return func() {
				_, err := mutex.Unlock()
				must(err)
			}
		}
	}
}

// It does not wait unless it is given a strategy; that of its example waits for 100 ms.
func redislockLock(client *goredis.Client, retry time.Duration) func(string) func() func() {
	locks := redislock.New(client)
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}
	return func(key string) func() func() {
		key = "redislock:" + key
		return func() func() {
			ctx := context.Background()
			lock, err := locks.Obtain(ctx, key, ttl, options)
			// By default it gives up after the ttl.
			for errors.Is(err, context.DeadlineExceeded) {
				lock, err = locks.Obtain(ctx, key, ttl, options)
			}
			must(err)
			return func() { must(lock.Release(ctx)) }
		}
	}
}

// By default it takes the majority of three keys. One key, and no message about its own writes,
// are its fastest settings on one server.
func rueidislockLock(url string) func(string) func() func() {
	options, err := rueidis.ParseURL(url)
	must(err)
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   options,
		KeyValidity:    ttl,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	must(err)
	return func(key string) func() func() {
		return func() func() {
			_, unlock, err := locker.WithContext(context.Background(), key)
			must(err)
			return unlock
		}
	}
}
